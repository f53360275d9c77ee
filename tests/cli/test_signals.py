"""What a signal that ends a command does to the rest of it, also during a call to Java."""

from __future__ import annotations

import logging
import signal
import sys
import time

import click
import pytest

from penstock.cli.signals import end_in_order, interrupted_once


def test_ctrl_c_amid_a_call_to_java_is_ctrl_c_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyboardInterrupt), interrupted_once():
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


def test_what_ends_a_command_in_order_is_not_what_py4j_makes_of_it() -> None:
    with pytest.raises(SystemExit) as ended, interrupted_once():
        try:
            sys.exit(128 + signal.SIGTERM)
        finally:
            # the next call takes the answer to the one that was interrupted for its own
            raise KeyError("p")
    assert ended.value.code == 128 + signal.SIGTERM


def test_an_error_that_no_ctrl_c_led_to_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="mine"), interrupted_once():
        try:
            raise OSError
        except OSError as error:
            raise ValueError("mine") from error


class _Ends:
    """py4j's objects have finalisers, and a signal may come in any of them."""

    def __init__(self, by: BaseException) -> None:
        self._by = by

    def __del__(self) -> None:
        raise self._by


@pytest.mark.parametrize("by", [KeyboardInterrupt(), SystemExit(128 + signal.SIGTERM)])
def test_ctrl_c_amid_a_finaliser_is_not_lost(by: BaseException) -> None:
    until = time.monotonic() + 60
    context = click.Context(click.Command("x"))
    with context, pytest.raises(type(by)), interrupted_once():
        end_in_order(context)
        ended = _Ends(by)
        del ended
        while time.monotonic() < until:
            time.sleep(0.01)
