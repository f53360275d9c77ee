"""Waiting for a descriptor that select(2) would refuse."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.shared.files.readable import is_abandoned, is_readable, wait_until_writable

FAR = 1100


@pytest.fixture
def far_pipe() -> Iterator[tuple[int, int]]:
    """Both ends have numbers above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= FAR + 2:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * FAR), hard))
    near = os.pipe()
    far = (
        fcntl.fcntl(near[0], fcntl.F_DUPFD_CLOEXEC, FAR),
        fcntl.fcntl(near[1], fcntl.F_DUPFD_CLOEXEC, FAR),
    )
    for handle in near:
        os.close(handle)
    yield far
    for handle in far:
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_is_readable_when_something_has_come(far_pipe: tuple[int, int]) -> None:
    read, write = far_pipe
    assert not is_readable(read, 0)
    assert not is_readable(read, 0.001)
    os.write(write, b"x")
    assert is_readable(read, 0)
    assert is_readable(read, None)


def test_an_end_counts_as_readable() -> None:
    read, write = os.pipe()
    try:
        os.close(write)
        assert is_readable(read, None)
    finally:
        os.close(read)


def test_a_file_is_always_readable() -> None:
    with open(__file__, "rb") as file:
        assert is_readable(file.fileno(), 0)


def test_a_time_longer_than_a_system_call_can_wait_is_no_error(far_pipe: tuple[int, int]) -> None:
    read, write = far_pipe
    os.write(write, b"x")
    assert is_readable(read, 10.0**9)


def test_writing_waits_until_there_is_room(far_pipe: tuple[int, int]) -> None:
    read, write = far_pipe
    os.set_blocking(write, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    written = []

    def wait_and_write() -> None:
        wait_until_writable(write)
        written.append(os.write(write, b"x"))

    waiting = threading.Thread(target=wait_and_write)
    waiting.start()
    waiting.join(0.2)  # by when one that does not wait has failed
    assert waiting.is_alive()
    while is_readable(read, 0):
        os.read(read, 4096)
    waiting.join()
    assert written == [1]


def test_nobody_reads_any_more_where_the_other_end_is_gone_and_not_where_something_has_come(
    far_pipe: tuple[int, int],
) -> None:
    read, write = far_pipe
    assert not is_abandoned(write)
    os.write(write, b"x")
    assert not is_abandoned(write) and not is_abandoned(read)
    near, other = socket.socketpair()
    with near:
        other.send(b"x")
        assert is_readable(near.fileno(), 0) and not is_abandoned(near.fileno())
        other.close()
        assert is_abandoned(near.fileno())
