"""Sectors that a real disk cannot read: a short sample of disks, and a broker that runs on one."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.chaos.arena import growing_store
from penstock.chaos.broker import Broker, running
from penstock.chaos.machine.bad_disk import Lost, bad_disk, lacks
from penstock.chaos.storage import sectors
from penstock.chaos.storage.sectors import Task, check_disks
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, decode_command, encode_command
from penstock.remoting.frames import FrameSplitter
from penstock.shared.errors import QueueUnreadable, UnreadableBody
from penstock.shared.layout import PAGE_BYTES, segment_name

pytestmark = [
    pytest.mark.takes(30),
    pytest.mark.skipif(bool(lacks()), reason=f"for want of {lacks()}"),
]

LEFT = ("stopped", "killed, its memory gone", "without power")
SEEDS = range(4)
# large enough that ZeroMQ is given them where they are mapped
BODY_BYTES, MESSAGES = 60_000, 60
SETTINGS = {"mapped_file_size_commit_log_bytes": 4 << 20}


@pytest.mark.parametrize("left", LEFT)
def test_no_intact_message_is_lost_in_silence_and_no_offset_is_given_twice(
    tmp_path: Path, left: str
) -> None:
    dice = random.Random(LEFT.index(left))
    with growing_store(tmp_path, dice, left) as (store, _, config):
        outcomes = check_disks(Task(store, config, left, list(SEEDS)))
    assert len(outcomes) == len(SEEDS) and all(hits for hits, _ in outcomes)
    assert [wrong for _, wrong in outcomes if wrong] == []


def test_an_index_file_whose_header_is_lost_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = "killed, its memory gone"
    with growing_store(tmp_path, random.Random(1), left) as (store, _, config):
        newest = max((store / "index").iterdir()).relative_to(store)
        monkeypatch.setattr(sectors, "choose_lost", lambda *_: [Lost(newest, 0, 1)])
        assert check_disks(Task(store, config, left, [0])) == [(1, [])]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """One that runs on a disk that has lost a page in the middle of the log, in a body."""
    with running(tmp_path / "before", SETTINGS) as filled:
        with Producer(filled.produce) as producer:
            producer.create_topic("orders", 1)
            for number in range(MESSAGES):
                producer.send("orders", bytes([number]) * BODY_BYTES)
        filled.await_dispatched()
        filled.stop()
    page = 30 * (BODY_BYTES + 200) // PAGE_BYTES
    lost = [Lost(Path("commitlog", segment_name(0)), page, page + 1)]
    place = tmp_path / "bad"
    place.mkdir()
    with bad_disk(place, filled.store, lost) as store, running(store.parent, SETTINGS) as found:
        yield found


def _read(broker: Broker, *, direct: bool) -> tuple[list[int], int]:
    """The numbers of the messages that a consumer gets, and how many bodies it cannot read."""
    numbers, unreadable = [], 0
    with Consumer(broker.consume, "orders", follow=False, direct=direct) as consumer:
        for message in consumer:
            try:
                body = bytes(message.body)
            except UnreadableBody:
                unreadable += 1
            else:
                assert body == bytes([body[0]]) * BODY_BYTES
                numbers.append(body[0])
    return numbers, unreadable


def _penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def _unreadable_pages(broker: Broker) -> int:
    """How many the reader has asked the disk for so far."""
    found = {actor["name"]: actor["unreadable_pages"] for actor in broker.status()["actors"]}
    return int(found["reader"])


def test_a_consumer_gets_what_is_whole_and_no_actor_ends(broker: Broker) -> None:
    before = broker.actors()
    for direct in (True, False):
        try:
            numbers, unreadable = _read(broker, direct=direct)
        except QueueUnreadable as error:  # the page beside it, with a record's head, is lost too
            assert "orders" in str(error)
        else:
            assert unreadable > 0 and len(numbers) + unreadable == MESSAGES
            assert {*range(20), *range(40, MESSAGES)} <= set(numbers)
    with Producer(broker.produce) as producer:
        assert producer.send("orders", b"goes on").result(30).queue_offset == MESSAGES
    segment = broker.store / "commitlog" / segment_name(0)
    while f"reader: the disk cannot read {segment}" not in broker.output():
        time.sleep(0.05)  # it is told of once in a while
    while not _unreadable_pages(broker):
        time.sleep(0.05)  # it is told of with the next heartbeat
    shown = _penstock("status", "--store", broker.store).stdout
    assert f"pages that the disk could not read: reader {_unreadable_pages(broker)}\n" in shown
    assert broker.actors() == before and "Traceback" not in broker.output()


def _pull(peer: socket.socket, offset: int) -> Command:
    says_what_it_wants = 4
    fields = {
        "consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": says_what_it_wants, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "maxMsgBytes": 1 << 20,
    }  # fmt: skip
    texts = {key: str(value) for key, value in fields.items()}
    peer.sendall(encode_command(Command(Request.PULL_MESSAGE, offset, texts)))
    splitter = FrameSplitter()
    while True:
        for frame in splitter.feed(peer.recv(1 << 20)):
            return decode_command(frame)


def test_rocketmqs_clients_are_given_nothing_that_the_disk_has_lost(broker: Broker) -> None:
    """They compare no checksums, and would take such a body for the message's."""
    host, _, port = broker.status()["endpoints"]["remoting"].removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), 30) as peer:
        good = _pull(peer, 0)
        assert good.code == Response.SUCCESS and len(good.body) > 10 * BODY_BYTES
        for offset in (int(good.fields["nextBeginOffset"]), 25, 25):
            bad = _pull(peer, offset)
            assert bad.code == Response.SYSTEM_ERROR and "cannot be read" in bad.remark
        assert _pull(peer, 50).code == Response.SUCCESS


def test_a_repair_writes_over_what_was_lost_and_all_else_is_served(broker: Broker) -> None:
    broker.stop()
    segment = str(broker.store / "commitlog" / segment_name(0))
    found = _penstock("store", "verify", broker.store)
    assert found.returncode == 5 and f"the disk cannot read {segment}" in found.stderr
    assert f"log-damaged: {segment}" in found.stdout
    repaired = _penstock("store", "repair", broker.store, "--apply")
    assert repaired.returncode == 0, repaired.stderr
    again = _penstock("store", "verify", broker.store)
    assert again.returncode == 0 and again.stderr == ""
    broker.start()
    for direct in (True, False):
        numbers, unreadable = _read(broker, direct=direct)
        assert not unreadable and {*range(20), *range(40, MESSAGES)} <= set(numbers)
    with Producer(broker.produce) as producer:
        assert producer.send("orders", b"goes on").result(30).queue_offset == MESSAGES
