"""Disks that are full, fail, or stand still: where chaos, which does so by chance, found faults."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGSEGV

import pytest

from penstock.chaos.broker import Broker
from penstock.chaos.interposed.faulty_disk import FLUSH, GROW, SOURCE, FaultyDisk
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.storage.short_life import ShortLife, short_life
from penstock.shared.errors import FlushTimeout, StoreUnavailable
from penstock.shared.layout import StorePaths

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(SOURCE, tmp_path_factory.mktemp("library"))


@pytest.fixture
def life(tmp_path: Path, library: Path) -> Iterator[ShortLife]:
    """A broker that serves, on a disk that is good so far, with some messages."""
    settings = {"actor_stall_timeout_ms": 500}
    with short_life(tmp_path / "life", library, settings) as life:
        assert life.start() == ""
        with life.producer() as producer:
            assert life.send(producer, 12), life.errors
        life.broker.await_dispatched()
        yield life


CALLS = """\
import os, sys
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for call in (
    lambda: os.write(handle, b"x"), lambda: os.pwrite(handle, b"x", 0),
    lambda: os.ftruncate(handle, 100), lambda: os.posix_fallocate(handle, 0, 200),
    lambda: os.mkdir(sys.argv[1] + ".d"), lambda: os.rename(sys.argv[1], sys.argv[1] + ".r"),
    lambda: os.fdatasync(handle), lambda: os.fsync(handle),
):
    try:
        call()
        print(0)
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.parametrize("nth", range(2, 8))
def test_the_call_that_is_to_fail_does_and_no_other(
    tmp_path: Path, library: Path, nth: int
) -> None:
    """Call 1 makes the file; the last two are of another kind."""
    root = tmp_path / "root"
    root.mkdir()
    disk = FaultyDisk(tmp_path / "disk", root, library)
    disk.fail(GROW, errno.ENOSPC, first=nth, once=True)
    ran = subprocess.run(
        [sys.executable, "-c", CALLS, str(root / "file")],
        env={**os.environ, **disk.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    codes = [int(line) for line in ran.stdout.split()]
    assert codes == [errno.ENOSPC if at == nth - 2 else 0 for at in range(8)]
    assert disk.calls(GROW) == 7 and disk.calls(FLUSH) == 2
    assert len(disk.failed()) == 1
    disk.close()


def test_a_full_disk_is_told_and_within_a_second_of_there_being_room_messages_are_taken(
    life: ShortLife,
) -> None:
    life.disk.fail(GROW, errno.ENOSPC)
    assert not life.send_all()
    with life.producer() as producer:  # the first were perhaps stored, and wait for the disk
        assert not life.send(producer, 1)
    told = [error for error in life.errors if isinstance(error, StoreUnavailable)]
    assert told and all("No space left" in str(error) for error in told), life.errors
    assert any("MiB are used" in str(error) for error in told), told
    assert life.check_readable() == []
    life.disk.heal()
    assert life.await_send(10) < 1
    assert life.check_tidy() == []
    life.broker.stop()
    assert life.check_next_life() == []


def test_a_stop_without_room_leaves_what_the_next_start_recovers(life: ShortLife) -> None:
    """The actors have nothing left to write, so it is the supervisor that finds no room."""
    life.broker.await_checkpoint()
    life.disk.fail(GROW, errno.ENOSPC)
    code, left = life.stop()
    assert code == 1 and left == []
    said = life.broker.output()
    assert "No space left" in said and "the next start recovers" in said, said
    assert life.check_tidy() == []
    life.broker.clear()
    assert life.check_next_life() == []


def test_a_start_without_room_says_what_it_could_not_write(tmp_path: Path, library: Path) -> None:
    with short_life(tmp_path / "life", library, {}) as life:
        life.disk.fail(GROW, errno.ENOSPC, first=10)
        said = life.start()
        assert "No space left on device" in said and "Traceback" not in said, said
        life.broker.clear()
        assert life.check_next_life() == []


@pytest.mark.parametrize("kind", [GROW, FLUSH])
def test_only_a_failed_flush_makes_the_store_read_only(life: ShortLife, kind: str) -> None:
    """Of a call that writes nothing is lost when it is tried again; a flush is not tried again."""
    life.disk.fail(kind, errno.ENOSPC)
    assert not life.send_all()
    life.disk.heal()
    if kind == GROW:
        assert life.await_send(10) < 5
        assert life.broker.status()["positions"]["flush_error"] == 0
        return
    with pytest.raises(StoreUnavailable, match="a flush failed: No space left"):
        life.await_send(0.5)
    assert life.broker.status()["positions"]["flush_error"] == errno.ENOSPC
    assert life.check_readable() == []


def test_an_actor_that_waits_for_the_disk_is_not_taken_for_frozen(life: ShortLife) -> None:
    """It waits three times as long as an actor may be silent; acknowledgements come late."""
    before = life.broker.actors()
    life.disk.delay(3_600_000)
    with life.producer() as producer:
        began = time.monotonic()
        assert not life.send(producer, 4)
        while time.monotonic() - began < 1.5:  # the stall's length is what is meant
            time.sleep(0.05)
    assert life.errors and all(isinstance(error, FlushTimeout) for error in life.errors)
    life.disk.heal()
    life.await_send(10)
    assert life.broker.actors() == before, life.broker.output()
    life.broker.stop()
    assert life.check_next_life() == []


def test_a_broker_whose_standard_error_has_no_room_goes_on(tmp_path: Path) -> None:
    """It has much to say while a disk is full, and perhaps to a file on that disk."""
    broker = Broker(tmp_path / "broker", {})
    broker.said = Path("/dev/full")
    try:
        broker.start()
        before = broker.strike("reput", SIGSEGV)
        deadline = time.monotonic() + 60
        while broker.actors()["reput"] in (0, before):
            assert time.monotonic() < deadline, "another reput"
            time.sleep(0.01)
        broker.process.terminate()
        broker.wait_end()
        assert not StorePaths(broker.store).abort.exists()
        assert broker.processes() == []
    finally:
        broker.clear()
