"""A sleep that ends with traffic, with the time, or when memory has grown; both forms alike."""

from __future__ import annotations

import mmap
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.shared.loops.pure import serving as pure

LONG_MS = 60_000
NEVER = 1 << 60


class Source(NamedTuple):
    """What is slept on, and the end of a pipe that makes it ready."""

    epoll: select.epoll
    pipe: int


Sleep = Callable[[int, int, int, int, int], None]


def _forms() -> list[Any]:
    try:
        from penstock.shared.loops import compiled
    except ImportError:
        missing = pytest.mark.skip(reason="the compiled loops were not built")
        return [pure.sleep_small, pytest.param(None, marks=missing)]
    return [pure.sleep_small, compiled.sleep_small]


@pytest.fixture(params=_forms(), ids=["pure", "compiled"])
def sleep(request: pytest.FixtureRequest) -> Sleep:
    found: Sleep = request.param
    return found


@pytest.fixture
def statm() -> Iterator[int]:
    handle = os.open("/proc/self/statm", os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.fixture
def source() -> Iterator[Source]:
    read, write = os.pipe()
    with select.epoll() as epoll:
        epoll.register(read, select.EPOLLIN)
        yield Source(epoll, write)
    os.close(read)
    os.close(write)


def test_it_ends_at_once_where_there_is_traffic_and_takes_none_of_it(
    sleep: Sleep, statm: int, source: Source
) -> None:
    os.write(source.pipe, b"x")
    began = time.monotonic()
    sleep(source.epoll.fileno(), statm, NEVER, LONG_MS, LONG_MS)
    assert time.monotonic() - began < LONG_MS / 2000
    assert source.epoll.poll(0)


def test_it_ends_with_traffic_that_comes_while_others_of_the_process_run(
    sleep: Sleep, statm: int, source: Source
) -> None:
    other = threading.Thread(target=os.write, args=(source.pipe, b"x"))
    began = time.monotonic()
    other.start()
    sleep(source.epoll.fileno(), statm, NEVER, LONG_MS, 5)
    other.join()
    assert time.monotonic() - began < LONG_MS / 2000


def test_it_ends_when_the_time_is_over(sleep: Sleep, statm: int, source: Source) -> None:
    began = time.monotonic()
    sleep(source.epoll.fileno(), statm, NEVER, 50, 20)
    assert 0.045 < time.monotonic() - began < LONG_MS / 2000
    sleep(source.epoll.fileno(), statm, NEVER, 0, 20)


def test_it_ends_at_the_first_look_that_finds_more_memory(
    sleep: Sleep, statm: int, source: Source
) -> None:
    most = pure.own_pages(statm) + 1000
    # new pages, and not what a heap has left of something else
    with mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as grown:
        grown.write(b"x" * len(grown))
        began = time.monotonic()
        sleep(source.epoll.fileno(), statm, most, LONG_MS, 10)
        assert time.monotonic() - began < LONG_MS / 2000


def test_what_cannot_be_read_is_an_error_and_not_a_sleep(sleep: Sleep, source: Source) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        sleep(source.epoll.fileno(), -1, NEVER, LONG_MS, 1)
