"""What commands on Spark have in common, as far as it needs no Spark."""

from __future__ import annotations

import logging
import time

import pytest

from penstock.cli.spark_session import ctrl_c_is_one


def test_ctrl_c_amid_a_call_to_java_is_ctrl_c_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyboardInterrupt), ctrl_c_is_one():
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                logging.exception("KeyboardInterrupt while sending command.")
                raise RuntimeError("Gateway must be connected to send cancel cmd.")  # noqa: B904 - as py4j does
        finally:
            # the call that Spark's handler of the signal makes amid the one that was interrupted
            try:
                try:
                    raise RuntimeError("reentrant call inside <_io.BufferedReader name=3>")
                except RuntimeError:
                    raise OSError("Error while sending or receiving")  # noqa: B904 - as py4j does
            except OSError:
                logging.exception("Exception while sending command.")
            logging.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_an_error_that_no_ctrl_c_led_to_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), ctrl_c_is_one():
        try:
            raise OSError
        except OSError as error:
            raise ValueError("mine") from error


class _Ends:
    """py4j's objects have finalisers, and a signal may come in any of them."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_amid_a_finaliser_is_not_lost() -> None:
    until = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt), ctrl_c_is_one():
        ended = _Ends()
        del ended
        while time.monotonic() < until:
            time.sleep(0.01)
