"""A member of a consumer group: what arrives from which queue, what is handed out, how it ends.

    coordinator <-> Membership      which queues                    one socket
    reader      <-> AssignedCore    their messages                  one socket for each topic
    writer      <-> SendBack        retries and dead letters        one socket
                    ProcessQueue    in hand, and how far done       for each queue

    take() -> Handful -> done | back | failed | untouched

The driver owns sockets and threads, calls `turn` after each exchange, and passes the time. Nothing
here may be called by two threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.core.groups.assigned_core import AssignedCore
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.membership import Membership, Queue
from penstock.client.core.groups.process_queue import (
    MAX_BYTES,
    MAX_MESSAGES,
    MAX_SPAN,
    Handful,
    ProcessQueue,
)
from penstock.client.core.groups.queue_rotation import QueueRotation
from penstock.client.core.groups.send_back import SendBack
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import decode_record
from penstock.shared.messaging.delayed import Delay, delayed
from penstock.shared.messaging.retried import FIRST_LEVEL, NEVER_AGAIN, is_spent, retried
from penstock.shared.messaging.system_topics import dlq_topic, retry_topic
from penstock.shared.wire.group_messages import Commit, Joined, Release

# A message that could not be sent back is handled again after this time, as in RocketMQ.
AGAIN_MS = 5000
# How long a queue that goes to another member waits for its running handlers. A queue with messages
# on their way back waits longer, as the next owner would be given them too. An orderly queue waits
# without limit: the next owner must not begin before the handlers have ended.
HANDOVER_MS, SENT_BACK_MS = 1000, 10_000


class Settings(NamedTuple):
    """How much is fetched ahead for each queue, and how often offsets are committed."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    max_span: int = MAX_SPAN
    commit_ms: int = 200
    suspend_ms: int = 1000
    # None: use the group's settings
    max_times: int | None = None
    consume_timeout_ms: int | None = None


class Back(NamedTuple):
    """A message that its handler has given back, and why. It comes again after `delay_ms` if that
    is not negative, else by its delay `level`; level 0 means the group's rule."""

    place: int
    level: int = 0
    reason: str = ""
    delay_ms: int = -1


class MemberCore:
    """One member's state."""

    def __init__(
        self, options: MemberOptions, settings: Settings, readers: dict[str, AssignedCore]
    ) -> None:
        self.options, self.settings, self.readers = options, settings, readers
        self.membership = Membership(options)
        self.send_back = SendBack(f"{options.group}/{options.client_id}")
        self.queues: dict[Queue, ProcessQueue] = {}
        self._rotation = QueueRotation()
        # queues that are about to be released, and since when
        self._leaving_since: dict[Queue, int] = {}
        self._paused: set[Queue] = set()
        self._commit_at_ms = 0
        # how many commits were sent to the coordinator
        self.commits = 0
        self._looked_ms = 0
        self.closing = False
        self.error: PenstockError | None = None
        self.lost = 0

    # --- handing out ---

    def take(self, most: int, now_ms: int) -> Handful | None:
        """Up to `most` messages of the queue whose turn it is; None if there is nothing to do."""
        if self.closing or self.is_suspended(now_ms):
            return None
        return self._rotation.take(most, now_ms, self._paused)

    def has_work(self, now_ms: int) -> bool:
        """Whether `take` would give something."""
        if self.closing or self.is_suspended(now_ms):
            return False
        return self._rotation.has_work(now_ms, self._paused)

    def is_suspended(self, now_ms: int) -> bool:
        """Whether others may have this member's queues, because no answer has come for long."""
        if self.options.model == "broadcasting":
            return self.membership.joined is None or self.membership.is_off
        return now_ms >= self.membership.lease_ends_ms

    @property
    def waiting(self) -> int:
        """How many messages have come and are not finished."""
        return sum([queue.count for queue in self.queues.values()])

    # --- what became of it ---

    def done(self, handful: Handful, start: int, stop: int) -> None:
        """The messages at these places were handled."""
        handful.queue.finish(handful, start, stop)

    def back(self, handful: Handful, back: Back, now_ms: int, wall_ms: int = 0) -> None:
        """A message is to come again later; it is finished when its next record is stored.

        `wall_ms` is wall-clock time, from which a delay in ms counts.
        """
        queue = handful.queue
        is_told = back.place in handful.parted or handful.lot.finished[back.place]
        if not self._has(queue) or is_told:
            return
        if self.options.model == "broadcasting":
            self.lost += 1  # nobody would handle it again: RocketMQ drops it too
            queue.finish(handful, back.place, back.place + 1)
            return
        single = queue.part(handful, back.place)
        record = decode_record(single.messages[0].record)
        times = record.reconsume_times + queue.failures.get(record.queue_offset, 0)
        made = retried(
            record,
            self.options.group,
            max_times=self.max_times,
            level=back.level,
            retry_queues=self._retry_queues,
            times=times,
            reason=back.reason,
            member=self.options.client_id,
        )
        is_dead = made.topic == dlq_topic(self.options.group)
        self.send_back.need_topic(made.topic, 1 if is_dead else self._retry_queues)
        timed = None
        if back.delay_ms >= 0 and not is_dead:
            timed = Delay(out_ms=wall_ms + back.delay_ms, delay_ms=back.delay_ms)
        self.send_back.put(delayed(made, timed), single)

    def failed(self, handful: Handful, back: Back, now_ms: int) -> None:
        """The handler of an orderly queue has failed: it tries again soon, and finally gives up.

        A delay in ms is how long the queue waits, as in RocketMQ. Of the levels, only the one that
        gives up has a meaning here.
        """
        queue = handful.queue
        is_told = handful.lot.finished[back.place] or not queue.holds(handful)
        if not self._has(queue) or is_told:
            return
        message = handful.lot.messages[back.place]
        times = message.reconsume_times + queue.failures.get(message.queue_offset, 0)
        if is_spent(times, self.max_times, back.level):
            self.back(handful, back._replace(level=NEVER_AGAIN), now_ms)
            self.untouched(handful, now_ms)
            return
        queue.failures[message.queue_offset] = 1 + queue.failures.get(message.queue_offset, 0)
        suspend_ms = self.settings.suspend_ms if back.delay_ms < 0 else back.delay_ms
        queue.suspended_until_ms = now_ms + suspend_ms
        self.untouched(handful, now_ms)

    def untouched(self, handful: Handful, now_ms: int) -> None:
        """The unfinished messages were not handled: they are handed out again."""
        handful.queue.give_back(handful, now_ms)

    def wants_turn(self, queue: ProcessQueue) -> bool:
        """Whether finished messages of this queue give the driver something to do now."""
        if queue.dropped or len(self.send_back):
            return True
        reader, settings = self.readers[queue.topic], self.settings
        return reader.is_paused(queue.queue_id) and not queue.is_full(
            settings.max_messages, settings.max_bytes, settings.max_span
        )

    def _has(self, queue: ProcessQueue) -> bool:
        return self.queues.get((queue.topic, queue.queue_id)) is queue

    @property
    def max_times(self) -> int:
        """How often a message may come again before it is a dead letter."""
        set_times = self.settings.max_times
        return self._group.retry_max_times if set_times is None else set_times

    @property
    def _retry_queues(self) -> int:
        return max(1, self._group.retry_queue_nums)

    @property
    def _group(self) -> Joined:
        """What the coordinator has said of the group."""
        joined = self.membership.joined
        assert joined is not None, "nothing is handed out before"
        return joined

    # --- each turn ---

    def turn(self, now_ms: int) -> None:
        """Take what has come, move queues, commit. Raises a refusal of the group or a topic."""
        membership = self.membership
        if membership.refused is not None:
            error, membership.refused = membership.refused, None
            raise error
        self._take_sent(now_ms)
        if self.options.model == "clustering":
            for name in membership.take_lost():
                self.lost += 1
                self._forget(name)
            for name, offset in membership.take_gained().items():
                self._begin(name, offset, membership.claims[name], offset)
            self._hand_over(now_ms)
        self._fill()
        if now_ms - self._looked_ms >= 1000:
            self._looked_ms = now_ms
            self._give_up_old(now_ms)
        if now_ms >= self._commit_at_ms:
            self.commit(now_ms)

    def _take_sent(self, now_ms: int) -> None:
        for single, error in self.send_back.outcomes():
            if not self._has(single.queue):
                continue
            if error is None:
                single.queue.finish(single, single.start, single.stop)
            else:
                offset = single.messages[0].queue_offset
                single.queue.failures[offset] = 1 + single.queue.failures.get(offset, 0)
                single.queue.give_back(single, now_ms + AGAIN_MS)

    def _begin(self, name: Queue, offset: int, epoch: int, given: int) -> None:
        self._forget(name)
        topic, queue_id = name
        queue = ProcessQueue(*name, offset, epoch, self.options.orderly, given)
        self.queues[name] = queue
        self._rotation.add(queue)
        self.readers[topic].add(queue_id, offset)

    def _forget(self, name: Queue) -> None:
        queue = self.queues.pop(name, None)
        if queue is not None:
            queue.dropped = True
            self._rotation.remove(queue)
            self.readers[name[0]].remove(name[1])
            self._leaving_since.pop(name, None)

    def _hand_over(self, now_ms: int) -> None:
        """Release queues that belong to others by now, once nobody works on them any more."""
        free: dict[Queue, int] = {}
        for name in list(self.membership.claims) if self.closing else self.membership.revoked:
            queue = self.queues.get(name)
            if queue is None:
                free[name] = -1
                continue
            since = self._leaving_since.setdefault(name, now_ms)
            queue.dropped = True
            patient = self.options.orderly or self.closing
            wait_ms = SENT_BACK_MS if queue.is_sent_back else HANDOVER_MS
            if queue.is_idle or not patient and now_ms - since >= wait_ms:
                free[name] = queue.committable
        if free:
            self.membership.release(free)
            for name in free:
                self._forget(name)
        if self.closing and self.membership.claims:
            self.membership.part()
        for name in [each for each in self._leaving_since if each in self.membership.wanted]:
            if not self.closing:  # the queue is this member's again
                del self._leaving_since[name]
                self.queues[name].dropped = False

    def _fill(self) -> None:
        """Move what has come into the queues, and pause the readers of those that are full."""
        settings = self.settings
        for topic, reader in self.readers.items():
            while (taken := reader.take_queue()) is not None:
                name = topic, taken.queue_id
                if name not in self.queues and self.options.model == "broadcasting":
                    self._meet(name, taken.stop)
                if (queue := self.queues.get(name)) is not None:
                    queue.put(taken.messages, taken.size, taken.stop)
        limits = settings.max_messages, settings.max_bytes, settings.max_span
        for name, queue in self.queues.items():
            stopped = queue.dropped or name in self._paused or queue.is_full(*limits)
            self.readers[name[0]].pause(name[1], stopped)

    def _meet(self, name: Queue, offset: int) -> None:
        """When broadcasting: begin a queue from which something has come for the first time."""
        queue = self.queues[name] = ProcessQueue(*name, offset, 0, self.options.orderly)
        self._rotation.add(queue)

    def _give_up_old(self, now_ms: int) -> None:
        """Messages in hand for too long come again; their handlers' results no longer count."""
        joined = self.membership.joined
        if joined is None or self.options.orderly or self.options.model == "broadcasting":
            return
        timeout_ms = self.settings.consume_timeout_ms
        if timeout_ms is None:
            timeout_ms = joined.consume_timeout_ms
        for queue in self.queues.values():
            for handful in queue.held_since(now_ms - timeout_ms):
                for place in list(handful.unfinished):
                    reason = f"in hand for more than {timeout_ms} ms"
                    self.back(handful, Back(place, FIRST_LEVEL, reason), now_ms)

    def commit(self, now_ms: int) -> None:
        """Tell the coordinator how far the queues are done, where that has changed."""
        self._commit_at_ms = now_ms + self.settings.commit_ms
        if self.options.model == "broadcasting" or self.membership.has_asked(Commit):
            return
        if news := self._news():
            self.membership.commit(news)
            self.commits += 1

    def _news(self) -> dict[Queue, int]:
        at = self.membership.committed
        return {
            name: offset
            for name, queue in self.queues.items()
            if (offset := queue.committable) != at.get(name)
        }

    @property
    def offsets(self) -> dict[Queue, int]:
        """How far each queue is done."""
        return {name: queue.committable for name, queue in self.queues.items()}

    # --- what the program says ---

    def seek(self, name: Queue, offset: int) -> None:
        """Go on at another offset. What is in hand of the queue no longer counts."""
        queue = self.queues[name]
        self.membership.begin_again(name)
        self._begin(name, offset, queue.epoch, queue.given)

    def pause(self, names: Iterable[Queue], paused: bool) -> None:
        """Stop handing out messages of these queues, or resume."""
        if paused:
            self._paused |= set(names)
        else:
            self._paused -= set(names)

    def assign(self, queues: Mapping[str, frozenset[int]] | None) -> None:
        """Take these queues, whoever else is in the group; None: divide them again."""
        self.membership.assign(queues)

    def close(self) -> None:
        """Hand out nothing more. Each queue is released when nobody works on it any more."""
        self.closing = self.membership.closing = True
        for queue in self.queues.values():
            queue.dropped = True

    def leave(self) -> None:
        """Release all that is left and leave the group. `membership.left`: this was answered."""
        offsets = {
            name: self.queues[name].committable if name in self.queues else -1
            for name in self.membership.claims
        }
        if self.options.model == "clustering":
            self.membership.release(offsets)
        self.membership.leave()

    @property
    def is_drained(self) -> bool:
        """Whether no handler works any more, and coordinator and writer have all results."""
        idle = all(queue.is_idle for queue in self.queues.values())
        return idle and not len(self.send_back) and not self.membership.has_asked(Release)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be done, unless something comes in or is finished."""
        waits = [self.membership.wait_ms(now_ms), self.send_back.wait_ms(now_ms)]
        waits += [reader.wait_ms(now_ms) for reader in self.readers.values()]
        # what is due already waits for a handler to take it, not for a turn
        due = [queue.due_ms() for queue in self.queues.values()]
        waits += [each - now_ms for each in due if each > now_ms]
        if self._news():
            waits.append(self._commit_at_ms - now_ms)
        return max(0, min(waits))


def member_topics(group: str, topics: Iterable[str], model: str) -> list[str]:
    """What a member reads: its topics and, when clustering, the group's retry topic."""
    return [*topics, *([retry_topic(group)] if model == "clustering" else [])]
