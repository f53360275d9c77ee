"""Groups that work exactly once: the coordinator follows what their blocks have stored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

from penstock.actors.committer import Committer
from penstock.actors.coordinator import Coordinator
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.shared.formats.properties import UNIQ_KEY, decode_properties
from penstock.shared.formats.record_crc import PROP_CRC
from penstock.shared.formats.record_layout import AT_MAGIC
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.messaging.offsets_record import (
    ANY,
    NONE,
    OFFSETS_QUEUE,
    begin_of,
    move_of,
)
from penstock.shared.messaging.system_topics import (
    OFFSETS_GROUP,
    OFFSETS_TOPIC,
    STAGING_TOPIC,
)
from penstock.shared.process.doorbells import LAZY_MS
from penstock.shared.queue.deleted_topics import NONE as NO_TOPICS
from penstock.shared.queue.deleted_topics import save_deleted_topics
from penstock.shared.store.saved_offsets import SavedOffsets, save_offsets
from penstock.shared.store.topics import load_topics, save_topics
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode

GROUP, TOPIC, SESSION_MS = "CG", "orders", 15_000


class Bench:
    def __init__(self, pipeline: Callable[..., Any], frame: Callable[..., bytes]) -> None:
        self.broker = pipeline()
        self._frame = frame
        topics = load_topics(self.broker.paths.topics)
        topics.put(TOPIC, 4, 1)
        topics.put(OFFSETS_TOPIC, 1, 1)
        save_topics(self.broker.paths.topics, topics)
        self.broker.allocate(2)
        for queue in range(4):
            self.broker.append(30, queue_id=queue)
        self._others: list[Any] = []
        self.begin()

    def begin(self) -> None:
        self.coordinator = self.broker.start(Coordinator)
        self.group = self.broker.client(self.broker.run.endpoints.group)
        self._number = 0
        self.ask(words.Join, "a", (words.SubscriptionData(TOPIC, "TAG", "*", 1),), SESSION_MS)

    def move(self, group: str = GROUP, **queues: tuple[int, int]) -> None:
        """A block is stored, without outputs."""
        moves = {TOPIC: {int(name[1:]): each for name, each in queues.items()}}
        body, properties = move_of(group, moves)
        raw = self._frame(OFFSETS_TOPIC, 0, [body], properties=properties)
        self.broker.append_frame(OFFSETS_TOPIC, 0, raw)

    def follow(self) -> None:
        """All that is stored is in its queues, and the coordinator has looked."""
        if not self._others:
            self._others = [self.broker.start(each) for each in (Committer, Flusher, Reput)]
        for _ in range(4):
            self.broker.clock.advance(LAZY_MS)
            for each in (*self._others, self.coordinator):
                while each.work():
                    continue

    def dispatch(self, *kinds: type) -> None:
        """All that is stored is in its queues, unless only some of the others work; the coordinator
        has not looked."""
        for _ in range(4):
            self.broker.clock.advance(LAZY_MS)
            for each in self._others:
                while (not kinds or isinstance(each, kinds)) and each.work():
                    continue

    def expire(self, min_offset: int) -> None:
        """As the cleaner does, of the moves of offsets."""
        table = QueueTable(self.broker.run.queues, writable=True)
        keys = table.keys(0, self.broker.positions["queue_count"])
        slots = {key: slot for slot, key in keys}
        table.publish_min_offset(slots[QueueKey(OFFSETS_TOPIC, OFFSETS_QUEUE)], min_offset)
        table.close()

    def serve(self, request: Any) -> None:
        """Have the coordinator begin with a request of the member."""
        peer = self.coordinator._members.member(GROUP, "a").peer
        self.coordinator._serve(peer, zmq.Frame(), request, self.broker.clock.monotonic_ms())
        self.coordinator.work()

    def writer(self) -> Any:
        """One that goes on where the log ends by now."""
        self.broker._end = None
        return self.broker.start(Writer)

    def leave_offsets(self, offsets: dict[str, dict[str, int]]) -> None:
        """In the file, as another broker may, by "topic@group" and queue."""
        file = self.broker.paths.consumer_offsets
        document = json.loads(file.read_bytes())
        document["offsetTable"] |= offsets
        file.write_text(json.dumps(document))

    def ask(self, kind: type, *fields: Any) -> Any:
        self._number += 1
        parts = encode(kind(self._number, GROUP, *fields))
        found = self.broker.ask(self.coordinator, self.group, parts)
        while not (answer := words.decode_group_answer(found[0][0])).request:
            self.told = answer
            found = self.broker.ask(self.coordinator, self.group)
        return answer

    def ask_with(self, writer: Any, kind: type, *fields: Any, step_ms: int = 1) -> Any:
        """The answer to a request for which the writer has to store something. In each turn the
        clock goes on by `step_ms`."""
        self._number += 1
        self.group.send(encode(kind(self._number, GROUP, *fields)))
        return self.answer_with(writer, step_ms)

    def answer_with(self, writer: Any, step_ms: int = 1) -> Any:
        """The next answer, for which the writer has to store something."""
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until
            for each in (writer, *self._others, self.coordinator):
                each.work()
            self.broker.clock.advance(step_ms)
            if self.group.poll(1):
                answer = words.decode_group_answer(self.group.recv_multipart()[0])
                if answer.request:
                    return answer

    def groups(self) -> Any:
        self._number += 1
        found = self.broker.ask(
            self.coordinator, self.group, encode(words.ListGroups(self._number))
        )
        return words.decode_group_answer(found[0][0])

    def offsets(self, group: str = GROUP) -> dict[int, int]:
        found = self.coordinator._claims.offsets().get(group, {}).get(TOPIC, {})
        return {queue: offset for queue, offset in found.items()}

    def restart(self) -> None:
        self.broker.crash(self.coordinator)
        self.begin()


@pytest.fixture
def bench(pipeline: Callable[..., Any], frame: Callable[..., bytes]) -> Bench:
    return Bench(pipeline, frame)


def test_what_blocks_have_stored_moves_the_group_s_offsets_and_is_followed_once(
    bench: Bench, frame: Callable[..., bytes]
) -> None:
    bench.move(q0=(NONE, 5), q1=(NONE, 7))
    bench.move(q0=(5, 9))
    body, properties = begin_of(GROUP, 3)
    raw = frame(OFFSETS_TOPIC, 0, [body], properties=properties)
    bench.broker.append_frame(OFFSETS_TOPIC, 0, raw)
    bench.follow()
    assert bench.offsets() == {0: 9, 1: 7}
    # what is committed otherwise is not taken back by a coordinator that starts again
    claimed = bench.ask(words.Claim, "a", TOPIC, (0,)).queues[0]
    assert claimed.offset == 9
    bench.ask(words.Commit, "a", (words.QueueCommit(TOPIC, 0, 12, claimed.epoch),))
    bench.restart()
    bench.follow()
    assert bench.offsets() == {0: 12, 1: 7}
    bench.move(q1=(7, 8))
    bench.restart()
    bench.follow()
    assert bench.offsets() == {0: 12, 1: 8}


def test_the_file_has_these_offsets_as_any_others_and_nobody_is_shown_the_broker_s_own(
    bench: Bench,
) -> None:
    bench.move(q2=(NONE, 5))
    bench.follow()
    bench.broker.stop(bench.coordinator)
    table = json.loads(bench.broker.paths.consumer_offsets.read_bytes())["offsetTable"]
    assert table[f"{TOPIC}@{GROUP}"] == {"2": 5}
    assert table[f"{OFFSETS_TOPIC}@{OFFSETS_GROUP}"] == {"0": 1}
    bench.begin()
    assert OFFSETS_GROUP not in bench.groups().groups


def test_an_operator_s_record_in_the_log_ends_the_claims_on_its_queue(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.ask(words.Claim, "a", TOPIC, (0,))
    bench.move(q0=(ANY, 2))
    bench.follow()
    assert bench.ask(words.Claim, "a", TOPIC, (0,)).queues[0].offset == 2
    assert [(each.topic, each.queue_id) for each in bench.told.reset] == [(TOPIC, 0)]


def test_a_block_and_an_operator_s_record_after_it_count_in_their_order(bench: Bench) -> None:
    """Also where both are followed at once."""
    bench.move(q0=(NONE, 5), q1=(NONE, 5))
    bench.move(q0=(ANY, 2))
    bench.follow()
    assert bench.offsets() == {0: 2, 1: 5}
    bench.move(q0=(ANY, 1))
    bench.move(q0=(1, 4))
    bench.follow()
    assert bench.offsets() == {0: 4, 1: 5}


def test_who_has_claimed_a_queue_since_its_reset_keeps_it_when_the_record_is_followed(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    writer = bench.writer()
    # the record is stored, and for as long as the coordinator waits it does not come to its queue
    others, bench._others = bench._others, bench._others[:2]
    bench.ask_with(writer, words.ResetOffsets, TOPIC, {0: 1})
    (claimed,) = bench.ask_with(writer, words.Claim, "a", TOPIC, (0,), step_ms=100).queues
    bench._others = others
    bench.follow()
    assert bench.ask(words.Claim, "a", TOPIC, (0,)).queues == (claimed,)
    assert claimed.offset == 1 and not hasattr(bench, "told")


def test_a_reset_of_what_blocks_have_moved_goes_by_the_log_and_others_do_not(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    writer = bench.writer()
    before = bench.broker.positions["wrote"]
    answer = bench.ask(words.ResetOffsets, TOPIC, {1: 3})
    assert answer.offsets == {1: (-1, 3)} and bench.broker.positions["wrote"] == before
    answer = bench.ask_with(writer, words.ResetOffsets, TOPIC, {0: 1, 1: 2})
    assert answer.offsets == {0: (5, 1), 1: (3, 2)}, answer
    assert bench.broker.positions["wrote"] > before
    writer._exact.turn()
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 1}}}
    bench.follow()
    assert bench.offsets() == {0: 1, 1: 2}


def test_resets_at_the_same_time_and_of_another_coordinator_are_records_of_their_own(
    bench: Bench,
) -> None:
    """Each has its key, without which the writer could not know one that is sent again; a checksum,
    where the others have one; and its answer."""
    bench.move(q0=(NONE, 5), q1=(NONE, 5), q2=(NONE, 5))
    bench.follow()
    config = msgspec.structs.replace(bench.broker.config, enabled_append_prop_crc=True)
    bench.broker.config = config
    bench.restart()
    writer = bench.writer()
    for queue_id in (0, 1):
        bench.serve(words.ResetOffsets(100 + queue_id, GROUP, TOPIC, {queue_id: 1}))
    found = [bench.answer_with(writer) for _ in range(2)]
    assert {each.request: each.offsets for each in found} == {100: {0: (5, 1)}, 101: {1: (5, 1)}}
    bench.follow()
    bench.broker.crash(bench.coordinator)
    bench.coordinator = bench.broker.start(Coordinator)
    found = [bench.ask_with(writer, words.ResetOffsets, TOPIC, {2: at}).offsets for at in (3, 2)]
    assert found == [{2: (5, 3)}, {2: (3, 2)}]
    while writer._exact.turn():
        continue
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 1, 1: 1, 2: 2}}}
    bench.follow()
    records = [decode_properties(each.properties) for each in bench.broker.stored(OFFSETS_TOPIC, 0)]
    assert len({each[UNIQ_KEY] for each in records[1:]}) == 4
    assert all(PROP_CRC in each for each in records[1:])


def test_a_reset_waits_until_all_that_blocks_have_moved_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a queue of which only the log knows yet would be reset without the log."""
    monkeypatch.setattr("penstock.actors.coordinator.log_offsets.AT_ONCE", 1)
    bench.follow()
    for to in (2, 3, 4):
        bench.move(q1=(to - 1 if to > 2 else NONE, to))
    bench.move(q0=(NONE, 5))
    bench.dispatch()
    writer = bench.writer()
    bench.ask_with(writer, words.ResetOffsets, TOPIC, {0: 1})
    writer._exact.turn()
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 1, 1: 4}}}


def test_a_group_is_deleted_after_all_that_blocks_have_moved_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.coordinator.log_offsets.AT_ONCE", 1)
    bench.follow()
    for queue in range(4):
        bench.move(**{f"q{queue}": (NONE, 5)})
    bench.dispatch()
    writer = bench.writer()
    bench.ask(words.Leave, "a")
    assert isinstance(bench.ask_with(writer, words.DeleteGroup), words.GroupSet)
    writer._exact.turn()
    assert writer._exact._offsets == {} == bench.offsets()


def test_a_queue_is_given_after_all_that_blocks_have_moved_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.coordinator.log_offsets.AT_ONCE", 1)
    bench.follow()
    for before, to in ((NONE, 5), (5, 9), (9, 12)):
        bench.move(q0=(before, to))
    bench.dispatch()
    assert bench.ask(words.Claim, "a", TOPIC, (0,)).queues[0].offset == 12


def test_a_queue_is_given_after_what_was_stored_before_has_come_to_its_queue(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.move(q0=(5, 9))
    bench.dispatch(Committer, Flusher)
    bench.serve(words.Claim(99, GROUP, "a", TOPIC, (0,)))
    assert bench.coordinator._long.waits
    bench.follow()
    (raw,) = bench.broker.ask(bench.coordinator, bench.group)[0]
    answer = words.decode_group_answer(raw)
    assert answer.request == 99 and answer.queues[0].offset == 9


def test_who_has_left_while_its_claim_waited_is_given_nothing(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.move(q0=(5, 9))
    bench.dispatch(Committer, Flusher)
    bench.serve(words.Claim(99, GROUP, "a", TOPIC, (0,)))
    assert isinstance(bench.ask(words.Leave, "a"), words.Left)
    bench.follow()
    (raw,) = bench.broker.ask(bench.coordinator, bench.group)[0]
    answer = words.decode_group_answer(raw)
    assert (answer.request, answer.status) == (99, "UNKNOWN_MEMBER")
    assert not bench.coordinator._claims.owners()


def test_a_group_that_is_deleted_has_no_value_left_in_the_log_either(bench: Bench) -> None:
    """Else one that gets its name could store no block: the writer would know where it had been."""
    bench.move(q0=(NONE, 5), q1=(NONE, 7))
    bench.move("OTHER", q0=(NONE, 3))
    bench.follow()
    writer = bench.writer()
    bench.ask(words.Leave, "a")
    deleted = bench.ask_with(writer, words.DeleteGroup)
    assert isinstance(deleted, words.GroupSet), deleted
    writer._exact.turn()
    assert writer._exact._offsets == {"OTHER": {TOPIC: {0: 3}}}
    bench.follow()
    assert bench.offsets() == {} and bench.offsets("OTHER") == {0: 3}
    assert bench.groups().groups.keys() == {"OTHER"}
    # there is nothing to take back any more, so it is done without the log
    bench.restart()
    bench.follow()
    before = bench.broker.positions["wrote"]
    bench.ask(words.Leave, "a")
    assert isinstance(bench.ask(words.DeleteGroup), words.GroupSet)
    assert bench.broker.positions["wrote"] == before and bench.offsets() == {}


@pytest.mark.parametrize("before", [5, ANY])
def test_a_record_that_ends_a_value_moves_nobody(bench: Bench, before: int) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.move(q0=(before, NONE))
    bench.follow()
    assert bench.offsets() == {0: 5} and bench.coordinator._log._known == {GROUP: {TOPIC: {}}}


def test_an_operator_s_record_counts_once_though_a_coordinator_that_starts_reads_it_again(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.move(q0=(ANY, 2))
    bench.follow()
    epoch = bench.ask(words.Claim, "a", TOPIC, (0,)).queues[0].epoch
    bench.ask(words.Commit, "a", (words.QueueCommit(TOPIC, 0, 12, epoch),))
    bench.restart()
    bench.follow()
    assert bench.offsets() == {0: 12}


def test_blocks_that_are_followed_at_once_each_begin_where_the_one_before_has_ended(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.move(q0=(5, 9))
    bench.move(q0=(9, 3))
    bench.follow()
    assert bench.offsets() == {0: 3}


def test_what_of_the_records_has_expired_is_not_read(bench: Bench) -> None:
    bench.follow()
    bench.broker.crash(bench.coordinator)
    bench.move(q1=(NONE, 7))
    bench.move(q0=(NONE, 5))
    bench.dispatch()
    bench.expire(1)
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 5}


def test_a_coordinator_that_has_lost_its_files_follows_from_the_beginning_whatever_is_saved(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.broker.crash(bench.coordinator)
    bench.broker.paths.group_journal.unlink()
    saved = SavedOffsets(1, bench.broker.positions["wrote"], {GROUP: {TOPIC: {0: 5}}})
    save_offsets(bench.broker.paths.exact_offsets, msgspec.json.encode(saved))
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 5}


def test_a_group_that_somebody_joins_while_it_is_deleted_stays(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    writer = bench.writer()
    bench.ask(words.Leave, "a")
    bench.group.send(encode(words.DeleteGroup(99, GROUP)))
    while not bench.coordinator._long.waits:
        bench.coordinator.work()
    bench.ask(words.Join, "a", (words.SubscriptionData(TOPIC, "TAG", "*", 1),), SESSION_MS)
    refused = bench.answer_with(writer)
    assert (refused.request, refused.status) == (99, "INVALID_ARGUMENT")
    assert bench.offsets() == {0: 5}


def commits(bench: Bench, offset: int, queue: int = 0) -> None:
    """A member has the queue, acknowledges without a block, and leaves."""
    claimed = bench.ask(words.Claim, "a", TOPIC, (queue,)).queues[0]
    commit = words.QueueCommit(TOPIC, queue, offset, claimed.epoch)
    bench.ask(words.Release, "a", (commit,))


def test_a_queue_that_was_acknowledged_without_blocks_is_given_once_the_log_says_so(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5), q1=(NONE, 5))
    bench.follow()
    commits(bench, 10)
    writer = bench.writer()
    # the coordinator knows what it has stored itself, before its record is in the queue
    others, bench._others = bench._others, bench._others[:2]
    given = bench.ask_with(writer, words.Claim, "a", TOPIC, (0, 1, 2)).queues
    bench._others = others
    assert [each.offset for each in given] == [10, 5, 0]
    writer._exact.turn()
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 10, 1: 5}}}
    # who has a queue goes on by itself, and is not told of what it has done
    before = bench.broker.positions["wrote"]
    epoch = given[0].epoch
    bench.ask_with(writer, words.Commit, "a", (words.QueueCommit(TOPIC, 0, 12, epoch),))
    assert bench.ask_with(writer, words.Claim, "a", TOPIC, (0,)).queues == (
        words.ClaimedQueue(0, 12, epoch),
    )
    assert bench.broker.positions["wrote"] == before
    bench.follow()
    assert bench.offsets() == {0: 12, 1: 5, 2: 0}


def test_a_block_that_comes_in_between_counts_and_sets_no_group_back(bench: Bench) -> None:
    bench.move(q0=(NONE, 5), q1=(NONE, 5))
    bench.follow()
    commits(bench, 10)
    commits(bench, 6, queue=1)
    # stored, and not in its queue: the coordinator cannot know
    bench.move(q0=(5, 8), q1=(5, 9))
    writer = bench.writer()
    others, bench._others = bench._others, bench._others[:2]
    given = bench.ask_with(writer, words.Claim, "a", TOPIC, (0, 1), step_ms=100).queues
    bench._others = others
    assert [each.offset for each in given] == [10, 9]
    writer._exact.turn()
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 10, 1: 9}}}
    bench.follow()
    assert bench.offsets() == {0: 10, 1: 9}
    bench.restart()
    bench.follow()
    assert bench.offsets() == {0: 10, 1: 9}


def test_of_a_queue_without_blocks_the_log_is_told_nothing(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    commits(bench, 10, queue=1)
    bench.serve(words.Claim(99, GROUP, "a", TOPIC, (1,)))
    assert not bench.coordinator._long.waits and bench.coordinator._log._records is None


@pytest.mark.parametrize("what", ["no move", "no record", "no segment"])
def test_what_cannot_be_read_of_the_records_is_passed_over(
    bench: Bench, frame: Callable[..., bytes], what: str
) -> None:
    """A client may have stored it, it may be damaged, or it may have just expired."""
    bench.follow()
    bench.broker.crash(bench.coordinator)
    place = bench.broker.positions["wrote"]
    if what == "no move":
        raw = frame(OFFSETS_TOPIC, 0, [b"hello"])
        bench.broker.append_frame(OFFSETS_TOPIC, 0, raw)
    bench.move(q0=(NONE, 5))
    if what != "no move":
        bench.move(q1=(NONE, 7))
    bench.dispatch()
    segment = bench.broker.paths.commit_log / segment_name(0)
    if what == "no record":
        with segment.open("r+b") as file:
            file.seek(place + AT_MAGIC)
            file.write(b"none")
    elif what == "no segment":
        segment.unlink()
    bench.begin()
    bench.follow()
    wanted = {"no move": {0: 5}, "no record": {1: 7}, "no segment": {}}
    assert bench.offsets() == wanted[what]


def test_a_queue_is_given_though_all_records_have_expired_before_they_were_read(
    bench: Bench,
) -> None:
    bench.follow()
    bench.broker.crash(bench.coordinator)
    bench.move(q0=(NONE, 5))
    bench.dispatch()
    bench.expire(1)
    bench.begin()
    bench.serve(words.Claim(99, GROUP, "a", TOPIC, (0,)))
    assert not bench.coordinator._long.waits


def test_a_member_s_late_commit_takes_nothing_back_of_what_blocks_have_stored(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.move(q0=(5, 9))
    bench.follow()
    commits(bench, 5)
    writer = bench.writer()
    before = bench.broker.positions["wrote"]
    bench.ask_with(writer, words.Claim, "a", TOPIC, (0,))
    while writer._exact.turn():
        continue
    assert bench.broker.positions["wrote"] == before
    assert writer._exact._offsets == {GROUP: {TOPIC: {0: 9}}}


def test_a_group_without_offsets_of_its_own_goes_on_where_its_blocks_have_ended(
    bench: Bench,
) -> None:
    """The records of the blocks have expired, and the group's files are not there any more."""
    saved = SavedOffsets(0, 0, {GROUP: {TOPIC: {0: 5, 1: 7}}})
    save_offsets(bench.broker.paths.exact_offsets, msgspec.json.encode(saved))
    bench.restart()
    assert bench.offsets() == {}
    assert bench.ask(words.Claim, "a", TOPIC, (0, 2)).queues[0].offset == 5
    assert bench.offsets() == {0: 5, 2: 0}


def test_what_another_broker_has_acknowledged_is_not_set_back_by_records_that_are_older(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5), q1=(NONE, 5))
    bench.follow()
    bench.broker.stop(bench.coordinator)
    # saved a while before the other broker came: what came then is followed once more
    bench.move(q0=(5, 8), q1=(5, 8))
    bench.leave_offsets({f"{TOPIC}@{GROUP}": {"0": 10, "1": 6}})
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 10, 1: 8}


def test_a_group_that_another_broker_has_set_back_stays_there_until_the_next_block(
    bench: Bench,
) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.broker.stop(bench.coordinator)
    bench.leave_offsets({f"{TOPIC}@{GROUP}": {"0": 3}})
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 3}
    bench.move(q0=(5, 8))
    bench.follow()
    assert bench.offsets() == {0: 8}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_log_that_was_cut_takes_back_what_its_blocks_had_done(
    bench: Bench, is_restarted: bool
) -> None:
    """Else the group would be past inputs whose outputs are gone."""
    bench.move(q0=(NONE, 5), q1=(NONE, 5))
    bench.follow()
    bench.broker.stop(bench.coordinator)
    bench.leave_offsets(
        {f"{TOPIC}@{GROUP}": {"0": 9, "1": 3}, f"{OFFSETS_TOPIC}@{OFFSETS_GROUP}": {"0": 2}}
    )
    values = {GROUP: {TOPIC: {0: 5, 1: 5}}}
    saved = SavedOffsets(2, bench.broker.positions["wrote"], values)
    save_offsets(bench.broker.paths.exact_offsets, msgspec.json.encode(saved))
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 5, 1: 3}
    if is_restarted:
        bench.broker.crash(bench.coordinator)
    bench.move(q0=(5, 8))  # it takes the place of what was cut
    if is_restarted:
        bench.dispatch()
        bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 8, 1: 3}


def test_what_the_queue_does_not_have_yet_after_a_start_is_not_taken_for_cut(bench: Bench) -> None:
    """A start cuts queues, and the reput writes them again while the coordinator works already."""
    bench.move(q0=(NONE, 5))
    bench.follow()
    bench.broker.stop(bench.coordinator)
    bench.move(q0=(5, 9))  # it was followed before, too
    bench.leave_offsets(
        {f"{TOPIC}@{GROUP}": {"0": 9}, f"{OFFSETS_TOPIC}@{OFFSETS_GROUP}": {"0": 2}}
    )
    bench.begin()
    for _ in range(5):
        bench.coordinator.work()
    bench.serve(words.Claim(99, GROUP, "a", TOPIC, (0,)))
    assert bench.offsets() == {0: 9} and bench.coordinator._long.waits
    assert bench.coordinator._log._records is None, "the log is not told what it knows"
    bench.follow()
    assert bench.offsets() == {0: 9}
    bench.move(q0=(9, 12))
    bench.follow()
    assert bench.offsets() == {0: 12}


def test_a_topic_that_is_created_again_has_no_value_of_the_one_before(bench: Bench) -> None:
    bench.move(q0=(NONE, 5))
    bench.follow()
    paths, positions = bench.broker.paths, bench.broker.positions
    deleted = NO_TOPICS.with_rows([TOPIC], positions["wrote"], 1).settled(set())
    save_deleted_topics(paths.deleted_topics, deleted)
    bench.broker.stage("writer").positions.publish("deleted_topics", deleted.last)
    bench.follow()
    bench.ask(words.Claim, "a", TOPIC, (0,))
    for restarted in (False, True):
        if restarted:
            bench.restart()
        bench.follow()
        assert bench.coordinator._log._known.get(GROUP, {}).get(TOPIC, {}) == {}
        assert bench.offsets() == {0: 0}


@pytest.mark.parametrize("log_offset", [99, 100, 101])
def test_saved_values_count_that_are_newer_than_their_topic_s_deletion(
    bench: Bench, log_offset: int
) -> None:
    paths = bench.broker.paths
    deleted = NO_TOPICS.with_rows([TOPIC], 100, 1).settled(set())
    save_deleted_topics(paths.deleted_topics, deleted)
    bench.broker.stage("writer").positions.publish("deleted_topics", deleted.last)
    saved = SavedOffsets(0, log_offset, {GROUP: {TOPIC: {0: 5}}})
    save_offsets(paths.exact_offsets, msgspec.json.encode(saved))
    bench.restart()
    bench.follow()
    given = bench.ask(words.Claim, "a", TOPIC, (0,)).queues[0].offset
    assert (given == 5) == (log_offset > 100)


def test_a_deleted_topic_takes_along_its_own_values_and_no_others(
    bench: Bench, frame: Callable[..., bytes]
) -> None:
    """Of a record that moves queues of several topics, too; and what comes right after the deletion
    is of the topic that is created again."""

    def move(group: str, *topics: str, to: int = 5) -> None:
        body, properties = move_of(group, {topic: {0: (NONE, to)} for topic in topics})
        raw = frame(OFFSETS_TOPIC, 0, [body], properties=properties)
        bench.broker.append_frame(OFFSETS_TOPIC, 0, raw)

    move(GROUP, "gone", STAGING_TOPIC, TOPIC)  # a writer of Spark's is no consumer
    move("OTHER", TOPIC)
    bench.follow()
    paths, positions = bench.broker.paths, bench.broker.positions
    deleted = NO_TOPICS.with_rows(["gone"], positions["wrote"], 1).settled(set())
    save_deleted_topics(paths.deleted_topics, deleted)
    bench.broker.stage("writer").positions.publish("deleted_topics", deleted.last)
    bench.follow()
    assert bench.coordinator._log._known == {GROUP: {TOPIC: {0: 5}}, "OTHER": {TOPIC: {0: 5}}}
    move(GROUP, "gone", to=7)
    bench.follow()
    assert bench.coordinator._log._known[GROUP] == {TOPIC: {0: 5}, "gone": {0: 7}}
    # a coordinator that starts now reads the first record again, and knows what of it is gone
    bench.broker.stop(bench.coordinator)
    bench.leave_offsets({f"{OFFSETS_TOPIC}@{OFFSETS_GROUP}": {"0": 0}})
    bench.begin()
    bench.follow()
    assert bench.offsets() == {0: 5} == bench.offsets("OTHER")
    assert bench.coordinator._log._known[GROUP] == {TOPIC: {0: 5}, "gone": {0: 7}}
