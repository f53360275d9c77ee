"""Signals end what works in the main thread, whichever thread the kernel gives them to."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.client.groups.stop_signals import stop_signals

WAIT_S = 30


@pytest.fixture(autouse=True)
def signals_of_a_program() -> Iterator[None]:
    """As Python has them at its start; afterwards they are the same again, and nobody listens."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert "penstock-signals" not in {each.name for each in threading.enumerate()}
    for number, handler in before.items():
        signal.signal(number, handler)


def strike_another_thread(number: signal.Signals) -> None:
    """The main thread is not woken by that, so that Python calls no handler."""
    struck = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number))
    struck.start()


def is_asleep(name: str) -> bool:
    """Whether a thread of this process waits for something."""
    (thread,) = (each for each in threading.enumerate() if each.name == name)
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_does_not_wake_the_main_thread_is_told_by_another(
    number: signal.Signals,
) -> None:
    told = threading.Event()
    with stop_signals(told.set):
        strike_another_thread(number)
        assert told.wait(WAIT_S)


def test_one_signal_is_told_to_all_that_work() -> None:
    first, second = threading.Event(), threading.Event()
    with stop_signals(first.set):
        with stop_signals(second.set):
            strike_another_thread(signal.SIGTERM)
            assert first.wait(WAIT_S)
            assert second.wait(WAIT_S)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one is Python's again"


def test_a_signal_that_is_not_for_it_stops_nothing() -> None:
    told, heard, is_ending = list[bool](), list[int](), False
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with stop_signals(lambda: told.append(is_ending)):
            os.kill(os.getpid(), signal.SIGUSR1)
            while not (heard and is_asleep("penstock-signals")):
                pass  # each turn looks for signals
            is_ending = True
            strike_another_thread(signal.SIGTERM)
            while not told:
                pass
        assert heard == [signal.SIGUSR1]
        assert all(told)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_where_the_program_has_handlers_of_its_own_nobody_listens() -> None:
    mine = list[int]()
    signal.signal(signal.SIGINT, lambda number, frame: mine.append(number))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stop_signals(lambda: mine.append(0)):
            assert "penstock-signals" not in {each.name for each in threading.enumerate()}
            os.kill(os.getpid(), signal.SIGINT)
            while not mine:
                pass
        assert mine == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("when", ["before", "in the block"])
def test_an_event_loop_that_hears_of_signals_goes_on_to_hear_of_them(when: str) -> None:
    async def main() -> None:
        loop, stopped, mine = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        if when == "before":
            loop.add_signal_handler(signal.SIGUSR1, mine.set)

        def stop() -> None:
            loop.call_soon_threadsafe(stopped.set)

        with stop_signals(stop):
            if when == "in the block":
                loop.add_signal_handler(signal.SIGUSR1, mine.set)
            strike_another_thread(signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), WAIT_S)
        strike_another_thread(signal.SIGUSR1)
        await asyncio.wait_for(mine.wait(), WAIT_S)

    asyncio.run(main())


def test_a_signal_for_a_fork_ends_it_and_not_its_parent() -> None:
    told = threading.Event()
    with stop_signals(told.set):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            with suppress(BaseException):
                os.write(writing, b"there")
                signal.pause()
            os._exit(1)
        assert os.read(reading, 5) == b"there"
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        while not is_asleep("penstock-signals"):
            pass  # it may read a byte of that signal yet
        assert not told.is_set()
        strike_another_thread(signal.SIGINT)
        assert told.wait(WAIT_S)
    os.close(reading)
    os.close(writing)


def test_a_fork_that_lives_longer_holds_up_no_end() -> None:
    """It may have been made by what tells Python nothing, and have the pipe open."""
    with stop_signals(lambda: None):
        pipe = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(pipe)
        copy = os.dup(pipe)
    os.close(copy)


def test_a_fork_has_signals_of_its_own_to_stop_by() -> None:
    with stop_signals(lambda: None):
        if (child := os.fork()) == 0:
            code = 1
            with suppress(BaseException):
                told = threading.Event()
                assert signal.set_wakeup_fd(-1) == -1, "what it opens next may have that number"
                with stop_signals(told.set):
                    strike_another_thread(signal.SIGTERM)
                    code = 0 if told.wait(WAIT_S) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_may_leave_the_block_of_its_parent() -> None:
    try:
        with stop_signals(lambda: None):
            child = os.fork()
    finally:
        if child == 0:
            os._exit(1 if sys.exc_info()[0] else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
