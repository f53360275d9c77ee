"""The reput after a start that cut queues: a record whose queue is damaged goes to where it stood,
as far as the entries from before and the whole records of the log agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors import reput
from penstock.actors.reput import Reput
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_layout import AT_QUEUE_ID, AT_QUEUE_OFFSET
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import QUARANTINE, damage_between, save_quarantine
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.queue.deleted_topics import DeletedTopic, DeletedTopics, save_deleted_topics
from penstock.shared.queue.earlier_entries import (
    EARLIER_ENTRIES,
    EarlierQueue,
    save_earlier_entries,
)

Place = tuple[int, int]  # queue, slot


class Log:
    """Records of two queues in turns, 0/0, 1/0, 0/1, 1/1, ..., that were dispatched before."""

    def __init__(self, broker: Any, count: int = 8, size: int = 100) -> None:
        self.broker = broker
        self.starts: list[int] = []
        self.sizes: list[int] = []
        for number in range(count):
            before = broker.positions["wrote"]
            end = broker.append(size=size, queue_id=number % 2)
            # a record that has no room in a segment begins the next one
            begin = before if end - before < 2 * size else broker.log(0, end).rindex(b"orders")
            self.starts.append(begin)
            self.sizes.append(end - begin)

    def entry(self, number: int, more: int = 0) -> bytes:
        return ENTRY.pack(self.starts[number], self.sizes[number] + more, 0)

    def remember(self, first: int = 0, **changed: bytes) -> None:
        """Leave the entries from before, from a slot on; `changed` has others, as `at_0_3`."""
        queues = []
        for queue in (0, 1):
            entries = [self.entry(number) for number in range(queue, len(self.starts), 2)]
            for name, entry in changed.items():
                _, of, slot = name.split("_")
                if int(of) == queue:
                    entries[int(slot)] = entry
            queues.append(EarlierQueue(b"orders", queue, first, b"".join(entries[first:])))
        save_earlier_entries(self.broker.run.path / EARLIER_ENTRIES, queues)

    def bend(self, number: int, queue: int, slot: int) -> None:
        """Let a record name another place."""
        segment_bytes = self.broker.config.mapped_file_size_commit_log_bytes
        base = self.starts[number] // segment_bytes * segment_bytes
        with (self.broker.paths.commit_log / segment_name(base)).open("r+b") as file:
            file.seek(self.starts[number] - base + AT_QUEUE_ID)
            file.write(queue.to_bytes(4, "big"))
            file.seek(self.starts[number] - base + AT_QUEUE_OFFSET)
            file.write(slot.to_bytes(8, "big"))

    def dispatch(self, work: Callable[..., None]) -> None:
        for name in ("committed", "flushed"):
            self.broker.positions.initialise(name, self.broker.positions["wrote"])
        work(self.broker.start(Reput))
        assert self.broker.positions["dispatched"] == self.broker.positions["wrote"]

    def slots(self, queue: int) -> list[int]:
        """To which records a queue's slots lead."""
        files = sorted(self.broker.paths.queue("orders", queue).iterdir())
        raw = b"".join(path.read_bytes() for path in files)
        positions = [position for position, size, _ in ENTRY.iter_unpack(raw) if size]
        return [self.starts.index(each) for each in positions]


@pytest.fixture
def log(pipeline: Callable[..., Any]) -> Callable[..., Log]:
    return lambda *shape: Log(pipeline(transient_store_pool_enable=False), *shape)


ODD, EVEN = [1, 3, 5, 7], [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (3, (0, 1)),  # another queue
        (3, (1, 2)),  # another slot
        (3, (0, 3)),  # that of a queue's last record, and of the log's
        (0, (1, 3)),
        (5, (0, 0)),  # that of the log's first
    ],
)
def test_a_record_that_names_another_s_slot_goes_to_its_own(
    log: Callable[..., Log],
    work: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    number: int,
    named: Place,
) -> None:
    it = log()
    it.remember()
    it.bend(number, *named)
    it.dispatch(work)
    assert (it.slots(0), it.slots(1)) == (EVEN, ODD)
    assert it.broker.queues() == {QueueKey("orders", 0): (0, 4), QueueKey("orders", 1): (0, 4)}
    (told,) = capfd.readouterr().err.splitlines()
    assert f"the record at {it.starts[number]} names" in told
    assert not (it.broker.run.path / EARLIER_ENTRIES).exists(), "they are written again"


def test_an_entry_that_gives_its_record_another_size_is_no_witness(
    log: Callable[..., Log],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Then the order of the log decides, as without entries: the record is of no slot."""
    monkeypatch.setattr(reput, "CYCLE_BYTES", 300)
    it = log()
    it.remember(at_0_1=it.entry(2, more=8))
    it.bend(3, 0, 1)
    it.dispatch(work)
    assert (it.slots(0), it.slots(1)) == (EVEN, [1, 5, 5, 7])
    told = capfd.readouterr().err
    assert told.count("is passed over") == told.count("messages are missing") == 1


def test_an_entry_that_leads_into_damage_is_no_witness(
    log: Callable[..., Log], work: Callable[..., None]
) -> None:
    it = log()
    it.remember()
    it.bend(5, 0, 1)
    segment_bytes = it.broker.config.mapped_file_size_commit_log_bytes
    # it begins before the record to which the entry leads
    damage = damage_between(it.broker.paths, segment_bytes, it.starts[1], it.starts[3], "bad")
    save_quarantine(it.broker.paths, damage, 77)
    it.broker.positions.initialise("read_only", QUARANTINE)
    it.dispatch(work)
    assert it.slots(0)[1] == 5


@pytest.mark.parametrize("what", ["expired", "cut off"])
def test_an_entry_that_leads_to_where_the_log_is_not_keeps_nobody_waiting(
    log: Callable[..., Log], work: Callable[..., None], what: str
) -> None:
    it = log(8, 15_000)
    segment_bytes = it.broker.config.mapped_file_size_commit_log_bytes
    if what == "expired":
        (it.broker.paths.commit_log / segment_name(0)).unlink()
        for name in ("log_start", "dispatched"):
            it.broker.positions.initialise(name, segment_bytes)
        it.remember()
        it.bend(6, 0, 0)
    else:
        at_end = ENTRY.pack(it.broker.positions["wrote"] - 100, 200, 0)
        it.remember(at_0_3=at_end)
        it.bend(7, 0, 3)
    it.dispatch(work)
    assert not it.broker.positions["dispatch_error"]


def test_a_record_of_a_topic_that_was_created_again_begins_where_the_deleted_one_has_ended(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    end = broker.append(3)
    row = DeletedTopic(number=1, topic="orders", log_end=end, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    it = Log(broker, 2)
    it.bend(0, 0, 0)
    it.dispatch(work)
    assert it.slots(0) == [0]
