"""Pulls of RocketMQ's clients: answered from the log's files, or held until there is something.

    take -> answered at once, or held -> something has come, or the time is over -> answered

A pull is for one queue. One that may wait, and has come to the queue's end, is held; new messages
that do not match its filter are passed over once. The offset that a pull commits is committed when
it comes, held or not.

A pull without a filter also gets messages that are in the log and not yet in the queue. So a client
may ask for an offset that the queue has yet to reach, and waits there as at the end.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.group_counts import GroupCounts
from penstock.actors.gateway.grouping.settings import GroupSettings
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.codes import Response
from penstock.remoting.fields import PULL_WAITS, PullAnswer, PullFields
from penstock.shared.errors import BrokerBusy
from penstock.shared.filters.message_filter import Filter
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.log.found_records import FoundRecords, piece_of
from penstock.shared.loops.active import lost_pages
from penstock.shared.memory.positions import Positions
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.matching import read_matching
from penstock.shared.queue.reader import MAX_PULL_BYTES, QueueDeleted, QueueReader, unreadable

# The most that RocketMQ's clients ask for, and what a client that names no limit gets.
DEFAULT_BYTES = 256 << 10
MOST_MESSAGES = 1024
# Entries that a filter looks at before its client is told how far it has come.
LOOK_ENTRIES = 4000
MOST_WAIT_MS = 60_000
# Pulls that one client may have waiting: it has one for each of its queues.
MOST_OF_A_CLIENT = 10_000
# How long a pull past the end waits, as the queue may only be late.
CATCH_UP_MS = 1000
# After a pull with a filter its client soon pulls again, and counts as waiting for this long.
LATELY_MS = 1000
# What a turn may take for all filters that look at properties. Each gets a share, however many
# there are, and its client is told how far it has come.
FILTERS_MS, SHARE_MS = 5, 1

Read = tuple[Response, str, PullAnswer, memoryview | bytes]


class _Pull(NamedTuple):
    call: Call
    fields: PullFields
    filter: Filter | None
    until_ms: int
    # how far the log was acknowledged when the pull came
    position: int


class Pulls:
    """All pulls of the gateway that have no answer yet."""

    def __init__(
        self,
        queues: QueueReader,
        fresh: FreshRecords,
        topics: TopicTable,
        groups: GroupSettings,
        positions: Positions,
        acknowledged: str,
        serving: Serving,
        answer: Callable[[Call, Reply], None],
        clock_ms: Callable[[], int],
        counts: GroupCounts,
    ) -> None:
        """`acknowledged` is the position up to which producers have answers; `clock_ms` is
        monotonic, and goes on in the middle of a turn."""
        self._clock_ms, self._counts = clock_ms, counts
        self._queues, self._fresh = queues, fresh
        self._topics, self._positions = topics, positions
        self._groups = groups
        self._acknowledged, self._serving, self._answer = acknowledged, serving, answer
        # by this process: messages given, pulls that found some, pulls that found none, and the
        # longest read of the log
        self.given = self.found = self.missed = self.longest_ms = 0
        # (topic, queue) -> pulls that wait for it
        self._held: dict[tuple[str, int], list[_Pull]] = {}
        self._held_of = Counter[Connection]()
        # how many are held, and how many of these have a filter
        self._held_count = self._filtered_count = 0
        self._queued = -1
        self._due_ms = 0
        # when the last pull with a filter came
        self._filtered_ms = -LATELY_MS
        # queues that have got messages since their held pulls were last tried
        self._news = set[tuple[str, int]]()
        # the versions of topics and groups at the last look
        self._version = (-1, -1)
        # this turn, and the time left in it for filters
        self._turn_ms, self._left_ms = 0, FILTERS_MS

    @property
    def waiting(self) -> int:
        """How many wait for any message."""
        return self._held_count - self._filtered_count

    def filtered(self, now_ms: int) -> int:
        """How many wait for messages that match their filters, which are looked for in queues; at
        least 1 for a moment after a pull with a filter."""
        return self._filtered_count or int(now_ms - self._filtered_ms < LATELY_MS)

    @property
    def is_empty(self) -> bool:
        """Whether none is held."""
        return not self._held

    @property
    def has_grown(self) -> bool:
        """Whether queues or the log have grown since held pulls were last tried."""
        return bool(self._held) and (
            self._positions["queued"] != self._queued or self._fresh.is_behind
        )

    def take(self, call: Call, fields: PullFields, chosen: Filter | None) -> None:
        """Answer a pull, or hold it. Raises PenstockError."""
        if chosen is None:
            # a pull that does not wait is to see the newest messages, too
            self._news |= self._fresh.look(self._positions["queued"])
        else:
            self._filtered_ms = call.now_ms
        wait_ms = fields.suspend_timeout_millis if fields.sys_flag & PULL_WAITS else 0
        until_ms = call.now_ms + max(0, min(wait_ms, MOST_WAIT_MS))
        pull = _Pull(call, fields, chosen, until_ms, self._positions[self._acknowledged])
        if (rest := self._try(pull, call.now_ms)) is not None:
            self._hold(rest)

    def work(self, now_ms: int) -> int:
        """Try held pulls again if their queues have grown, topics or settings of groups have
        changed, or their time is over. Pulls of ended connections are dropped here, too: to search
        for them at each end would take quadratic time when all connections end at once."""
        queued = self._positions["queued"]
        news, self._news = self._news, set()
        if self._held:
            news |= self._fresh.look(queued)
        version = self._topics.version, self._groups.version
        has_changed = version != self._version
        is_due = now_ms >= self._due_ms
        # a message is news for one queue only, and pulls may wait for thousands
        is_all = is_due or has_changed or queued != self._queued
        self._queued, self._version = queued, version
        if is_due:
            self._due_ms = now_ms + CATCH_UP_MS // 10
        done = 0
        for topic, queue_id in list(self._held) if is_all else news & self._held.keys():
            held = self._held[topic, queue_id]
            slot = self._queues.queues(topic).get(queue_id)
            end = self._queues.range(slot)[1] if slot is not None else 0
            # clients may already have messages that the queue has yet to get
            last = max(end, self._fresh.end(topic, queue_id))
            rest = []
            for pull in held:
                if not pull.call.connection.is_open:
                    continue
                is_at_end = end <= pull.fields.queue_offset <= last
                has_news = has_changed or (topic, queue_id) in news
                if is_at_end and not has_news and now_ms < pull.until_ms:
                    rest.append(pull)
                elif again := self._serving.do(pull.call, partial(self._try, pull, now_ms)):
                    rest.append(again)
            done += len(held) - len(rest)
            self._count_off(held, rest)
            if rest:
                self._held[topic, queue_id] = rest
            else:
                del self._held[topic, queue_id]
        return done

    def wake(self, group: str) -> None:
        """Answer all held pulls of a group: by their next ones its members show which queues they
        keep."""
        for key, held in list(self._held.items()):
            self._held[key] = [
                pull if pull.fields.consumer_group != group else pull._replace(until_ms=0)
                for pull in held
            ]
        self._due_ms = 0

    def _hold(self, pull: _Pull) -> None:
        """Raises BrokerBusy."""
        connection = pull.call.connection
        if self._held_of[connection] >= MOST_OF_A_CLIENT:
            what = "as many pulls of this client as may are waiting"
            raise BrokerBusy(what, MOST_OF_A_CLIENT, "run more clients")
        self._held_of[connection] += 1
        self._held_count += 1
        self._filtered_count += pull.filter is not None
        key = pull.fields.topic, pull.fields.queue_id
        self._held.setdefault(key, []).append(pull)

    def _count_off(self, held: list[_Pull], rest: list[_Pull]) -> None:
        """Count off the pulls that are no longer held."""
        if len(rest) < len(held):
            self._held_count -= len(held) - len(rest)
            self._filtered_count -= sum(pull.filter is not None for pull in held)
            self._filtered_count += sum(pull.filter is not None for pull in rest)
            self._held_of.subtract(pull.call.connection for pull in held)
            self._held_of.update(pull.call.connection for pull in rest)
            for connection in {pull.call.connection for pull in held}:
                if not self._held_of[connection]:
                    del self._held_of[connection]

    def _try(self, pull: _Pull, now_ms: int) -> _Pull | None:
        """Answer a pull, or return it as it is to be held."""
        is_last = now_ms >= pull.until_ms
        try:
            found = self._read(pull, is_last, now_ms)
        except OSError as error:
            if isinstance(error, QueueDeleted):
                return pull
            self._answer(pull.call, refusal(unreadable(pull.fields.topic, error)))
            return None
        asked = pull.fields
        if isinstance(found, _Pull):
            self._pulled(asked, found.fields.queue_offset)
            return found
        code, words, fields, body = found
        self._pulled(asked, fields.next_begin_offset)
        if code == Response.SUCCESS:
            self.found += 1
        else:
            self.missed += 1
        self._answer(pull.call, Reply(fields, body, code, words))
        return None

    def _pulled(self, asked: PullFields, offset: int) -> None:
        self._counts.pulled(asked.topic, asked.consumer_group, asked.queue_id, offset)

    def _read(self, pull: _Pull, is_last: bool, now_ms: int) -> Read | _Pull:
        """What RocketMQ would answer; or the pull, if it goes on waiting. Raises PenstockError
        where nobody may pull."""
        fields, queues = pull.fields, self._queues
        self._groups.check_pull(fields.consumer_group)
        self._topics.check_pull(fields.topic, fields.queue_id)
        slot = queues.queues(fields.topic).get(fields.queue_id)
        offset = fields.queue_offset
        low, high = queues.range(slot) if slot is not None else (0, 0)
        if slot is not None and offset >= high and pull.filter is None:
            newest = self._fresh.read(fields.topic, fields.queue_id, offset, *_limits(fields))
            if newest is not None:
                records, after, end = newest
                return self._success(pull, records, PullAnswer(after, low, end), now_ms)
            # Either this is the end, or the queue is about to get what is missing here.
            if offset <= self._fresh.end(fields.topic, fields.queue_id):
                high = offset
        if slot is None or offset == high:
            if offset == high and not is_last:
                return pull
            words = "OFFSET_OVERFLOW_ONE" if slot is not None else "NO_MESSAGE_IN_QUEUE"
            if offset == high:
                return Response.PULL_NOT_FOUND, words, PullAnswer(offset, low, high), b""
        if offset > high:
            # A client may know of messages that the queue does not have yet. To be moved back would
            # cost it seconds, and give it these messages again.
            if queues.queued < pull.position:
                if not is_last or now_ms - pull.call.now_ms < CATCH_UP_MS:
                    return pull
                words = "OFFSET_OVERFLOW_ONE"
                return Response.PULL_NOT_FOUND, words, PullAnswer(offset, low, high), b""
            words = "OFFSET_OVERFLOW_BADLY"
            return Response.PULL_OFFSET_MOVED, words, PullAnswer(high, low, high), b""
        if slot is None or offset < low:
            words = "OFFSET_TOO_SMALL" if slot is not None else "NO_MESSAGE_IN_QUEUE"
            return Response.PULL_OFFSET_MOVED, words, PullAnswer(low, low, high), b""
        began_ms = self._clock_ms()
        found, after = self._records(pull, slot, offset, high, now_ms)
        self.longest_ms = max(self.longest_ms, self._clock_ms() - began_ms)
        if after == offset:
            words = "MESSAGE_WAS_REMOVING"
            whole = queues.whole_from(slot, offset)
            return Response.PULL_RETRY_IMMEDIATELY, words, PullAnswer(whole, low, high), b""
        if found.size:
            return self._success(pull, found, PullAnswer(after, low, high), now_ms)
        if after == high and not is_last:
            # looked through once: what has not matched is not looked at again
            return pull._replace(fields=replace(fields, queue_offset=after))
        words = "NO_MATCHED_MESSAGE"
        return Response.PULL_RETRY_IMMEDIATELY, words, PullAnswer(after, low, high), b""

    def _success(self, pull: _Pull, found: FoundRecords, answer: PullAnswer, now_ms: int) -> Read:
        fields, body = pull.fields, bytes(piece_of([found]))
        if lost_pages():
            _check_whole(body)
        span = answer.next_begin_offset - fields.queue_offset
        count = span if pull.filter is None else _count(body)
        self.given += count
        self._counts.got(fields.topic, fields.consumer_group, count, len(body), now_ms)
        return Response.SUCCESS, "FOUND", answer, body

    def _records(
        self, pull: _Pull, slot: int, offset: int, high: int, now_ms: int
    ) -> tuple[FoundRecords, int]:
        size, most = _limits(pull.fields)
        if pull.filter is None:
            return self._queues.read(slot, offset, size, most)
        stop = min(high, offset + LOOK_ENTRIES)
        if now_ms != self._turn_ms:
            self._turn_ms, self._left_ms = now_ms, FILTERS_MS
        began_ms, share_ms = self._clock_ms(), max(SHARE_MS, self._left_ms)
        found = read_matching(
            self._queues, slot, offset, stop, size, pull.filter,
            lambda: self._clock_ms() - began_ms < share_ms, most,
        )  # fmt: skip
        self._left_ms -= self._clock_ms() - began_ms
        return found


def _limits(fields: PullFields) -> tuple[int, int]:
    """The most bytes, approximately, and the most messages of an answer."""
    most = max(1, min(fields.max_msg_nums, MOST_MESSAGES))
    wanted = fields.max_msg_bytes if fields.max_msg_bytes is not None else DEFAULT_BYTES
    return max(1, min(wanted, MAX_PULL_BYTES)), most


def _check_whole(records: bytes) -> None:
    """Raise OSError if a record is not whole. RocketMQ's clients compare no checksums, and would
    take what the disk could not read for a message."""
    at = 0
    while at < len(records):
        found, size, _ = examine(records, at, len(records))
        if found is not Kind.RECORD:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        at += size


def _count(records: bytes) -> int:
    """How many records there are."""
    count = at = 0
    while at < len(records):
        at += int.from_bytes(records[at : at + 4], "big")
        count += 1
    return count
