"""Blocks that work exactly once, at the writer: a frame moves offsets or is not stored."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.actors.writer.exact_offsets import SAVE_MS
from penstock.shared.errors import error_from_status
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.messaging.offsets_record import ANY, NONE, begin_of, move_of
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.process.doorbells import LAZY_MS
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.store.saved_offsets import SavedOffsets, save_offsets
from penstock.shared.wire.messages import (
    Appended,
    CreateTopic,
    DeleteTopic,
    QueueRun,
    Refused,
    Route,
    encode,
)

HOST = pack_host("127.0.0.1", 10911)
OWN = QueueRun(OFFSETS_TOPIC, 0, 1)


def record(topic: str, body: bytes, properties: dict[str, str], queue: int = 0) -> bytes:
    raw = encode_properties(properties)
    return encode_record(Record(topic, body, raw, queue, born_host=HOST))


def block(
    key: str, moves: dict[str, dict[int, tuple[int, int]]], outputs: int = 2, group: str = "g"
) -> tuple[list[QueueRun], bytes]:
    """The frame of a block. `key` makes its records' UNIQ_KEYs."""
    body, properties = move_of(group, moves)
    last = record(OFFSETS_TOPIC, body, properties | {"UNIQ_KEY": f"{key}-move"})
    if not outputs:
        return [OWN], last
    body, properties = begin_of(group, outputs + 2)
    first = record(OFFSETS_TOPIC, body, properties | {"UNIQ_KEY": f"{key}-begin"})
    made = b"".join(
        record("orders", f"{key}{each}".encode(), {"UNIQ_KEY": f"{key}-{each}"})
        for each in range(outputs)
    )
    return [OWN, QueueRun("orders", 0, outputs), OWN], first + made + last


def one(key: str, begin: int, end: int, outputs: int = 2) -> tuple[list[QueueRun], bytes]:
    return block(key, {"in": {0: (begin, end)}}, outputs)


class Bench:
    """A writer in this process with a producer, whatever becomes of the writer."""

    def __init__(self, pipeline: Callable[..., Any], client: Callable[..., Any]) -> None:
        self.broker = pipeline()
        self.broker.allocate(4)
        self._client = client
        self.start()

    def start(self) -> None:
        self.writer = self.broker.start(Writer)
        self.producer = self._client(self.broker, self.writer)
        self.producer.ask(encode(Route(7, OFFSETS_TOPIC, True)))
        self.producer.hello(0)  # from where a copy can lie

    def restart(self) -> None:
        self.broker.crash(self.writer)
        self.start()

    def send(self, frame: tuple[list[QueueRun], bytes], *, retry: bool = False) -> Any:
        (answer,) = self.producer.append_runs(*frame, retry=retry)
        return answer

    def send_when_read(self, frame: tuple[list[QueueRun], bytes], *, retry: bool = False) -> Any:
        """The answer once the writer has found the present values."""
        answer = self.send(frame, retry=retry)
        while isinstance(answer, Refused) and answer.status == "SYSTEM_BUSY":
            self.producer.hello(0)
            answer = self.send(frame, retry=retry)
        return answer


@pytest.fixture
def bench(pipeline: Callable[..., Any], client: Callable[..., Any]) -> Bench:
    return Bench(pipeline, client)


def present(answer: Any) -> dict[str, dict[int, int]]:
    assert isinstance(answer, Refused), answer
    error: Any = error_from_status(answer.status, answer.what, answer.value, answer.hint)
    assert error.status == "OFFSETS_MOVED", error
    found: dict[str, dict[int, int]] = error.offsets
    return found


def test_a_block_moves_the_offsets_and_a_second_one_from_there_is_refused(bench: Bench) -> None:
    assert isinstance(bench.send(one("a", NONE, 10)), Appended)
    wrote = bench.broker.positions["wrote"]
    assert present(bench.send(one("zombie", NONE, 12))) == {"in": {0: 10}}
    assert present(bench.send(one("zombie", 9, 12))) == {"in": {0: 10}}
    assert bench.broker.positions["wrote"] == wrote, "nothing of it is stored"
    assert isinstance(bench.send(one("b", 10, 12, outputs=0)), Appended)
    assert isinstance(bench.send(one("c", 12, 13)), Appended)


def test_one_queue_of_several_that_has_moved_refuses_all_and_is_the_one_told(bench: Bench) -> None:
    bench.send(block("a", {"in": {0: (NONE, 1), 1: (NONE, 1)}, "other": {3: (NONE, 5)}}))
    wrote = bench.broker.positions["wrote"]
    refused = bench.send(block("b", {"in": {0: (1, 2), 1: (0, 2)}, "other": {3: (5, 6)}}))
    assert present(refused) == {"in": {1: 1}}
    assert bench.broker.positions["wrote"] == wrote
    assert isinstance(bench.send(block("c", {"in": {0: (1, 2)}})), Appended)
    assert isinstance(bench.send(block("d", {"in": {0: (NONE, 2)}}, group="h")), Appended)


def test_an_operator_sets_and_ends_a_value_whatever_it_is(bench: Bench) -> None:
    bench.send(one("a", NONE, 10))
    assert isinstance(bench.send(one("reset", ANY, 3, outputs=0)), Appended)
    assert present(bench.send(one("b", 10, 11))) == {"in": {0: 3}}
    assert isinstance(bench.send(one("end", ANY, NONE, outputs=0)), Appended)
    assert present(bench.send(one("b", 3, 11))) == {"in": {0: NONE}}
    assert isinstance(bench.send(one("b", NONE, 11)), Appended)


def test_a_block_that_is_sent_again_is_answered_as_stored_though_its_offsets_have_moved(
    bench: Bench,
) -> None:
    bench.send(one("a", NONE, 10))
    first = bench.send(one("b", 10, 20))
    bench.send(one("c", 20, 30))
    wrote = bench.broker.positions["wrote"]
    again = bench.send(one("b", 10, 20), retry=True)
    assert isinstance(again, Appended)
    assert again.runs[-1].physical_offset == first.runs[-1].physical_offset
    bench.restart()
    assert isinstance(bench.send(one("b", 10, 20), retry=True), Appended)
    assert bench.broker.positions["wrote"] == wrote


@pytest.mark.parametrize("stored", range(5))
def test_a_beginning_that_another_broker_has_left_is_completed_or_refused_by_its_offsets(
    bench: Bench, stored: int
) -> None:
    """A start here cuts it (test_unfinished_frame.py), RocketMQ's does not."""
    runs, payload = one("b", 10, 20)
    sizes = [0]
    while sizes[-1] < len(payload):
        at = sizes[-1]
        sizes.append(at + int.from_bytes(payload[at : at + 4], "big"))
    bench.send(one("a", NONE, 10))
    cut = payload[: sizes[stored]]
    topics = [OFFSETS_TOPIC, "orders", "orders", OFFSETS_TOPIC]
    bench.broker.crash(bench.writer)
    for number in range(stored):
        bench.broker.append_frame(topics[number], 0, payload[sizes[number] : sizes[number + 1]])
    bench.broker._end = None
    bench.start()
    answer = bench.send((runs, payload), retry=True)
    if stored == 4:
        assert isinstance(answer, Appended) and len(cut) == len(payload)
    assert isinstance(answer, Appended), answer
    assert present(bench.send(one("c", 10, 20))) == {"in": {0: 20}}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda runs, raw, first, last: ([*runs, runs[1]], raw + record("orders", b"x", {}) * 2),
        lambda runs, raw, first, last: (runs[1:], raw[len(first) :]),
        lambda runs, raw, first, last: (runs[:2], raw[: -len(last)]),
        lambda runs, raw, first, last: ([runs[0], runs[2]], first + last),
        lambda runs, raw, first, last: ([runs[0]], first),
        lambda runs, raw, first, last: ([QueueRun(OFFSETS_TOPIC, 0, 2)], last + last),
        lambda runs, raw, first, last: ([QueueRun(OFFSETS_TOPIC, 0, 1, True)], last),
        lambda runs, raw, first, last: ([OWN], record(OFFSETS_TOPIC, b"{}", {})),
        lambda runs, raw, first, last: (
            [OWN],
            record(OFFSETS_TOPIC, b'{"group":"g/..","topics":{"in":{"0":[0,1]}}}', {}),
        ),
        lambda runs, raw, first, last: (
            [OWN],
            record(OFFSETS_TOPIC, b'{"group":"g","topics":{"in":{"0":[-3,1]}}}', {}),
        ),
    ],
)
def test_what_is_not_a_whole_block_is_refused_and_nothing_of_it_stored(
    bench: Bench, spoil: Callable[..., tuple[list[QueueRun], bytes]]
) -> None:
    runs, raw = one("a", NONE, 10)
    size = int.from_bytes(raw[:4], "big")
    last = one("a", NONE, 10, outputs=0)[1]
    wrote = bench.broker.positions["wrote"]
    answer = bench.send(spoil(runs, raw, raw[:size], last))
    assert isinstance(answer, Refused), answer
    assert answer.status == "MESSAGE_ILLEGAL"
    assert bench.broker.positions["wrote"] == wrote


def test_a_new_writer_finds_the_values_by_queue_log_and_what_was_saved(bench: Bench) -> None:
    broker = bench.broker
    others = [broker.start(each) for each in (Committer, Flusher, Reput)]
    at = NONE
    for number in range(40):
        assert isinstance(bench.send_when_read(one(f"k{number}-", at, number)), Appended)
        at = number
        if number == 10:
            broker.clock.advance(SAVE_MS)
            for _ in range(20):
                [each.work() for each in (bench.writer, *others)]
            assert broker.paths.exact_offsets.exists()
            assert broker.positions["unsaved_offsets"] == 0
        if number == 25:  # what comes from here on has no entry in the queue
            for _ in range(20):
                broker.clock.advance(LAZY_MS)
                [each.work() for each in others]
            assert broker.positions["dispatched"] == broker.positions["wrote"]
        if number in (5, 12, 30, 39):
            bench.restart()
    answer = bench.send_when_read(one("again", 3, 99))
    assert present(answer) == {"in": {0: 39}}
    assert broker.positions["unsaved_offsets"] > 1


def test_a_new_writer_goes_on_after_what_was_saved_and_saves_nothing_again(bench: Bench) -> None:
    broker = bench.broker
    others = [broker.start(each) for each in (Committer, Flusher, Reput)]
    for number in range(3):
        assert isinstance(bench.send(one(f"k{number}", number - 1, number)), Appended)
    broker.clock.advance(SAVE_MS)
    for _ in range(20):
        [each.work() for each in (bench.writer, *others)]
    saved = broker.paths.exact_offsets.read_bytes()
    bench.restart()
    assert present(bench.send_when_read(one("again", 0, 9))) == {"in": {0: 2}}
    assert broker.paths.exact_offsets.read_bytes() == saved


def test_a_new_writer_reads_many_blocks_in_a_step_but_not_all(bench: Bench) -> None:
    """It serves others between two steps, and a step for each block would take long."""
    broker, blocks = bench.broker, 200
    others = [broker.start(each) for each in (Committer, Flusher, Reput)]
    for number in range(blocks):
        answer = bench.send_when_read(one(f"k{number}-", number - 1, number, outputs=0))
        assert isinstance(answer, Appended)
    while broker.positions["dispatched"] < broker.positions["wrote"]:
        broker.clock.advance(LAZY_MS)
        [each.work() for each in others]
    broker.crash(bench.writer)
    writer = broker.start(Writer)
    assert writer.work() == 1 and writer.has_more(), "it does not sleep between two steps"
    exact, steps = writer._exact, 1
    while exact._loading is not None:
        steps += exact.turn()
    assert exact._offsets == {"g": {"in": {0: blocks - 1}}}
    assert 3 <= steps <= 8


def test_no_more_values_are_kept_than_the_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.writer.exact_offsets.MAX_VALUES", 2)
    both = {"in": {0: (NONE, 5), 1: (NONE, 5)}}
    assert isinstance(bench.send(block("a", both)), Appended)
    assert isinstance(bench.send(block("b", {"in": {0: (5, 6)}})), Appended)
    answer = bench.send(block("c", {"in": {2: (NONE, 5)}}))
    assert isinstance(answer, Refused) and answer.status == "SERVICE_NOT_AVAILABLE"
    assert "penstock groups rm GROUP; it names no writers of Spark" in answer.hint


def test_the_log_keeps_the_first_record_of_values_that_are_not_saved(bench: Bench) -> None:
    """Else the cleaner may take the only one that there is."""
    positions = bench.broker.positions
    wrote = positions["wrote"]
    for key, begin, end in (("a", NONE, 10), ("b", 10, 20)):
        assert isinstance(bench.send(one(key, begin, end)), Appended)
        assert positions["unsaved_offsets"] == max(wrote, 1)


def test_a_new_runs_writer_has_the_log_keep_what_the_last_one_has_not_saved(bench: Bench) -> None:
    assert isinstance(bench.send(one("a", NONE, 10)), Appended)
    bench.broker.positions.initialise("unsaved_offsets", 0)  # a run begins with an empty page
    bench.restart()
    assert present(bench.send_when_read(one("again", 3, 99))) == {"in": {0: 10}}
    assert bench.broker.positions["unsaved_offsets"] == 1


def test_values_are_saved_only_when_the_disk_has_what_they_follow_from(bench: Bench) -> None:
    broker = bench.broker
    bench.send(one("a", NONE, 10))
    broker.clock.advance(SAVE_MS)
    for _ in range(10):
        bench.writer.work()
    assert not broker.paths.exact_offsets.exists()
    bench.send(one("b", 10, 20))
    broker.positions.initialise("flushed", broker.positions["wrote"])
    bench.writer.work()
    assert b'"0":10' in broker.paths.exact_offsets.read_bytes()
    assert broker.positions["unsaved_offsets"], "of b nothing is saved"


def test_damaged_saved_values_refuse_blocks_and_nothing_else(bench: Bench) -> None:
    bench.send(one("a", NONE, 10))
    bench.broker.paths.exact_offsets.write_bytes(b"{")
    bench.restart()
    bench.writer.work()
    refused = bench.send(one("b", 10, 20))
    assert isinstance(refused, Refused) and refused.status == "STORE_DAMAGED"
    assert isinstance(bench.producer.append([b"x"])[0], Appended)


def test_a_store_without_such_blocks_has_no_file_and_keeps_nothing(bench: Bench) -> None:
    bench.producer.append([b"x"])
    bench.broker.clock.advance(2 * SAVE_MS)
    bench.writer.work()
    assert not bench.broker.paths.exact_offsets.exists()
    assert not bench.broker.positions["unsaved_offsets"]


MEMBERS = 3
STEPS = st.lists(
    st.tuples(
        st.integers(0, MEMBERS - 1),
        st.sampled_from(["work", "work", "again", "learn", "restart"]),
        st.integers(1, 3),
    ),
    max_size=30,
)


class Model:
    """Members that believe in any values, retries and new writers, and what must come of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.believed = [NONE] * MEMBERS
        self.sent: list[tuple[Any, range, int, int] | None] = [None] * MEMBERS
        self.stored: set[int] = set()
        self.value = NONE
        self.outputs: list[int] = []

    def work(self, member: int, count: int, number: int) -> None:
        """A member does inputs from where it believes to be."""
        before = self.believed[member]
        inputs = range(max(before, 0), max(before, 0) + count)
        frame = one(f"block{number}-", before, inputs.stop, outputs=count)
        self.sent[member] = frame, inputs, before, number
        self.send(member, retry=False)

    def send(self, member: int, *, retry: bool) -> None:
        found = self.sent[member]
        if found is None:
            return
        frame, inputs, before, number = found
        answer = self.bench.send_when_read(frame, retry=retry)
        if number in self.stored:
            assert isinstance(answer, Appended), "a block that is stored is answered as stored"
        elif before == self.value:
            assert isinstance(answer, Appended)
            self.stored.add(number)
            self.outputs += inputs
            self.value = inputs.stop
        else:
            assert present(answer) == {"in": {0: self.value}}
        if isinstance(answer, Appended):
            self.believed[member] = inputs.stop


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_outputs_are_the_function_of_the_inputs_whoever_believes_what(
    pipeline: Callable[..., Any], client: Callable[..., Any], steps: list[tuple[int, str, int]]
) -> None:
    bench = Bench(pipeline, client)
    model = Model(bench)
    for number, (member, what, count) in enumerate(steps):
        if what == "restart":
            bench.restart()
        elif what == "learn":
            model.believed[member] = model.value
        elif what == "again":
            model.send(member, retry=True)
        else:
            model.work(member, count, number)
    assert model.outputs == list(range(len(model.outputs)))
    committer = bench.broker.start(Committer)
    bench.broker.clock.advance(LAZY_MS)
    committer.work()
    log = bench.broker.log(0, bench.broker.positions["wrote"])
    assert log.count(b"UNIQ_KEY\x01block") == len(model.outputs) + 2 * len(model.stored)


@pytest.mark.parametrize("queue_offset", [0, 1, 7])
def test_values_outlive_their_records_and_a_log_that_ends_below_what_was_saved(
    pipeline: Callable[..., Any], client: Callable[..., Any], queue_offset: int
) -> None:
    broker = pipeline()
    saved = SavedOffsets(queue_offset, 5000, {"g": {"in": {0: 40}}})
    save_offsets(broker.paths.exact_offsets, msgspec.json.encode(saved))
    broker.allocate(2)
    bench = Bench.__new__(Bench)
    bench.broker, bench._client = broker, client
    bench.start()
    assert present(bench.send_when_read(one("a", NONE, 5))) == {"in": {0: 40}}
    assert isinstance(bench.send(one("a", 40, 50)), Appended)
    bench.restart()
    assert present(bench.send_when_read(one("b", 40, 60))) == {"in": {0: 50}}


@pytest.mark.parametrize("saved", [False, True], ids=["by the log", "saved"])
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "by the next writer"])
def test_a_topic_that_is_deleted_takes_along_how_far_groups_were_in_it(
    bench: Bench, restarted: bool, saved: bool
) -> None:
    """One that is created again begins at 0: the old offsets would pass over what is in it."""
    broker = bench.broker
    bench.producer.ask(encode(CreateTopic(8, "in", 1)))
    both = {"in": {0: (NONE, 10)}, "stays": {0: (NONE, 5)}}
    assert isinstance(bench.send_when_read(block("a", both)), Appended)
    if saved:
        broker.clock.advance(SAVE_MS)
        broker.positions.initialise("flushed", broker.positions["wrote"])
        for _ in range(10):
            bench.writer.work()
        assert broker.paths.exact_offsets.exists()
    bench.producer.ask(encode(DeleteTopic(9, "in")))
    bench.producer.ask(encode(CreateTopic(10, "in", 1)))
    if restarted:
        bench.restart()
    assert isinstance(bench.send_when_read(one("b", NONE, 3)), Appended)
    bench.restart()
    again = {"in": {0: (NONE, 4)}, "stays": {0: (NONE, 6)}}
    assert present(bench.send_when_read(block("c", again))) == {"in": {0: 3}, "stays": {0: 5}}


def test_a_disk_that_was_full_when_a_writer_began_keeps_no_block_out_afterwards(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """The log ends below what was saved, so that is saved again. The limit on file sizes stands for
    the disk."""
    broker = pipeline()
    saved = SavedOffsets(9, 5000, {"g": {"in": {0: 40}}})
    save_offsets(broker.paths.exact_offsets, msgspec.json.encode(saved))
    broker.allocate(2)
    writer = broker.start(Writer)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        writer.work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    producer = client(broker, writer)
    producer.ask(encode(Route(7, OFFSETS_TOPIC, True)))
    producer.hello(0)
    (refused,) = producer.append_runs(*one("a", 40, 50))
    assert isinstance(refused, Refused) and refused.status == "SERVICE_NOT_AVAILABLE"
    assert "File too large" in refused.value
    broker.clock.advance(RETRY_MS)
    for _ in range(5):
        writer.work()
    producer.hello(0)
    assert present(producer.append_runs(*one("a", 0, 50))[0]) == {"in": {0: 40}}
    assert isinstance(producer.append_runs(*one("b", 40, 50))[0], Appended)
