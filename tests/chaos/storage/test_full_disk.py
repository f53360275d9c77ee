"""A real disk that others fill: nothing that is stored goes, what is new is refused, and said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.admin.clean import request_clean
from penstock.client import Consumer, Producer
from penstock.errors import StoreUnavailable, TopicNotFound
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.process.broker_status import read_status
from penstock.shared.process.disk_full import used_percent
from penstock.shared.store.checkpoint_file import load_checkpoint

TIMEOUT_S = 120
MIB = 1 << 20
# an index file of the default size has 20 MB
SETTINGS: dict[str, object] = {
    "max_hash_slot_num": 1000,
    "max_index_num": 100_000,
    "clean_resource_interval_ms": 50,
    "flush_interval_consume_queue_ms": 50,
    "flush_consume_queue_thorough_interval_ms": 50,
    "delete_when": '"' + ";".join(map(str, range(24))) + '"',
}


class Disk:
    """A small disk that is full of others' files as far as a test says."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._others = place / "others"

    def fill(self, percent: float) -> None:
        """Others take what is missing to this many percent."""
        disk = os.statvfs(self.place)
        used = disk.f_blocks - disk.f_bfree
        blocks = int(disk.f_blocks * percent / 100) - used
        handle = os.open(self._others, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with suppress(OSError):  # to the last byte
            for _ in range(max(0, blocks) + (percent >= 100)):
                os.write(handle, bytes(disk.f_frsize))
        os.close(handle)

    def free(self) -> None:
        self._others.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """Make a disk of this many MiB, at a place that has a directory `store` on it."""
    mounted: list[Path] = []

    def make(mib: int) -> Disk:
        place = tmp_path / "store"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        mounted.append(place)
        return Disk(place)

    yield make
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _send(endpoint: str, count: int, first: int = 0) -> None:
    with Producer(endpoint) as producer:
        sent = [
            producer.send("orders", b"%d" % number + bytes(900))
            for number in range(first, first + count)
        ]
        for each in sent:
            each.result(TIMEOUT_S)


def _numbers(endpoint: str) -> list[int]:
    with Consumer(endpoint, "orders", follow=False) as consumer:
        return sorted(int(bytes(message.body).rstrip(b"\0")) for message in consumer)


def _used(store: Path) -> int:
    return used_percent(_position(store, "disk_used")) or 0


def _position(store: Path, name: str) -> int:
    return int(read_status(store)["positions"][name])


def test_on_a_disk_that_others_fill_no_unread_message_goes_and_new_ones_are_refused(
    disk: Callable[[int], Disk], start_broker: Callable[..., Any], tmp_path: Path
) -> None:
    small = disk(60)
    running = start_broker(tmp_path, **SETTINGS)
    _send(running.produce, 5000)
    closed = 3 * MIB
    checkpoint = StorePaths(running.store).checkpoint
    _await(lambda: load_checkpoint(checkpoint).confirm_offset > closed, "closed segments")
    for percent, full in ((88, False), (93, True), (100, True)):
        small.fill(percent)
        _await(lambda p=percent - 8: _used(running.store) > p, "a look")
        for _ in range(3):  # each is a whole round of the cleaner
            assert request_clean(running.store)["segments"] == []
        assert bool(_position(running.store, "disk_full")) == full
        assert _numbers(running.consume) == list(range(5000))
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        _send(running.produce, 1)
    assert running.process.stdout.readline().startswith(b"full produce=")
    small.free()
    assert running.process.stdout.readline().startswith(b"ready produce=")
    _send(running.produce, 10, first=5000)
    _await(lambda: _numbers(running.consume) == list(range(5010)), "the new ones, too")
    assert read_status(running.store)["deletions"] == []


def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_that_was_acknowledged(
    disk: Callable[[int], Disk], start_broker: Callable[..., Any], tmp_path: Path
) -> None:
    """Nobody looks at the disk meanwhile, so every process meets the end of it by itself."""
    small = disk(60)
    running = start_broker(tmp_path, **SETTINGS | {"clean_resource_interval_ms": 10**8})
    _send(running.produce, 500)
    small.fill(100)
    acked, refused = [], []
    with Producer(running.produce, timeout_ms=20_000) as producer:
        sent = [producer.send("orders", b"%d" % n + bytes(900)) for n in range(500, 6000)]
        for number, each in enumerate(sent, 500):
            try:
                each.result(TIMEOUT_S)
                acked.append(number)
            except StoreUnavailable as error:
                refused.append(str(error))
    assert acked and refused, "the segments that were there are filled, and there is no other"
    assert all("segment" in each for each in refused), set(refused)
    _await(lambda: "there is no next segment" in running.said.read_text(), "it is said")
    assert running.process.stdout.readline().startswith(b"full produce=")
    small.free()
    assert running.process.stdout.readline().startswith(b"ready produce=")
    _send(running.produce, 10, first=6000)
    expected = [*range(500), *acked, *range(6000, 6010)]
    _await(lambda: _numbers(running.consume) == expected, "all that was acknowledged")


def test_a_log_that_was_copied_with_holes_refuses_what_the_disk_has_no_room_for(
    disk: Callable[[int], Disk], start_broker: Callable[..., Any], tmp_path: Path
) -> None:
    """A store into a hole of a mapping is a SIGBUS there."""
    small = disk(60)
    settings = SETTINGS | {
        "transient_store_pool_enable": "false",
        "mapped_file_size_commit_log_bytes": 16 * MIB,
        "clean_resource_interval_ms": 10**8,
    }
    filled = start_broker(tmp_path, **settings)
    _send(filled.produce, 10)
    filled.process.send_signal(signal.SIGTERM)
    assert filled.process.wait(TIMEOUT_S) == 0
    hole = ["fallocate", "--punch-hole", "--offset", str(MIB), "--length", str(15 * MIB)]
    subprocess.run([*hole, filled.store / "commitlog" / segment_name(0)], check=True)
    running = start_broker(tmp_path, **settings)
    small.fill(100)
    with pytest.raises(StoreUnavailable, match="commit log segment cannot be made or opened"):
        _send(running.produce, 1, first=10)
    small.free()
    _send(running.produce, 3000, first=10)
    _await(lambda: _numbers(running.consume) == [*range(3010)], "all that was acknowledged")
    assert not any(actor["restarts"] for actor in read_status(running.store)["actors"])


Up = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def up() -> Iterator[Up]:
    """`penstock up` on a store; killed where the test does not end it."""
    begun: list[subprocess.Popen[str]] = []

    def begin(store: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli.main", "up", "--store", str(store)]
        begun.append(
            subprocess.Popen(
                [*command, "--port", "auto", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_a_disk_without_room_for_a_segment_is_an_error_that_says_how_much_is_missing(
    disk: Callable[[int], Disk], up: Up
) -> None:
    small = disk(60)
    process = up(small.place / "here")
    out, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")
    assert "1073741824" in said and "are free" in said and "Traceback" not in said
    hint = f"penstock up --store {small.place / 'here'} --set mapped_file_size_commit_log_bytes="
    assert hint in said
    smaller = said.split(hint)[1].split()[0]
    again = up(small.place / "here", "--set", f"mapped_file_size_commit_log_bytes={smaller}")
    assert again.stdout is not None and again.stdout.readline().startswith("ready ")
    again.send_signal(signal.SIGTERM)
    assert "the store is clean" in again.communicate(timeout=TIMEOUT_S)[1]


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_start_on_a_full_disk_says_so_in_place_of_ready_and_is_ready_when_there_is_room(
    disk: Callable[[int], Disk], up: Up, output: str
) -> None:
    small = disk(60)
    small.fill(93)
    small_files = ["mapped_file_size_commit_log_bytes=1048576", "max_hash_slot_num=1000"]
    settings = [word for each in small_files for word in ("--set", each)]
    process = up(
        small.place / "here", "-o", output, *settings, "--set", "clean_resource_interval_ms=50"
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if output == "json":
        first = json.loads(line)
        assert first["ready"] is False and "% full (" in first["full"]
        consume = first["endpoints"]["consume"]
    else:
        assert line.startswith("full produce=") and "% full (" in line
        consume = dict(word.split("=", 1) for word in line.split()[1:4])["consume"]
    with pytest.raises(TopicNotFound):  # which only a broker that serves can know
        _numbers(consume)
    small.free()
    line = process.stdout.readline()
    if output == "json":
        assert json.loads(line)["ready"] is True and json.loads(line)["full"] == ""
    else:
        assert line.startswith("ready produce=")
    process.terminate()
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and "the store is clean" in said
