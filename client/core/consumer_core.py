"""The consumer without sockets: answers in, messages and requests out. Every call passes the time.

    Describe -> cursors -> Pull -> records, cursors move -> Pull ...
                            |                 take() -> messages
                            +---> places -> fetch() -> fetched() -> records

One pull is in flight at a time, and it names all queues. An unanswered request is sent again, which
is safe: the reader keeps one request per consumer, and an answer to an older one is dropped.
A pull gives credit for several short answers. Each answer says where it begins, so a lost or
duplicate one is noticed, and another pull goes on from the cursors.
An answer's header says where the next pull begins, so that pull is sent before the records are
decoded; how many bytes may wait to be taken is bounded. An answer may also only say where in the
log the records are. Then they are fetched (log_files.py), and the next pull waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import astuple

from penstock.client.core import arguments
from penstock.client.core.aim import Aim
from penstock.client.core.log_files import LogFiles
from penstock.client.core.message import Message, OfMessages, OfPart, Part, Source
from penstock.client.core.reading.losses import Losses
from penstock.client.core.reading.open_request import OpenRequest
from penstock.client.core.reading.queues_aside import QueuesAside
from penstock.client.core.reading.records_at_hand import PULL_BYTES, RecordsAtHand, pull_bytes
from penstock.client.core.selection import Selection
from penstock.client.core.start import (
    Start,
    StartAt,
    check_given,
    check_within,
    first_offset,
    last_offset,
    parse_start,
)
from penstock.client.core.timeouts import answer_too_long, silent
from penstock.shared.errors import PenstockError, ProtocolError, QueueNotFound, StoreDamaged
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.names import check_topic
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, error_from_refusal

WAIT_MS = 5000
_ANY_NUMBER = 1 << 31

_T = TypeVar("_T")


class ConsumerCore:
    """One consumer's state: what it wants of a topic, where it is, and what it is waiting for."""

    def __init__(
        self,
        endpoint: str,
        topic: str,
        now_ms: int,
        *,
        start: Start = "earliest",
        queues: Collection[int] | None = None,
        follow: bool = True,
        selection: Selection | None = None,
        timeout_ms: int,
        max_body_bytes: int = MAX_BODY_BYTES,
        direct: bool = False,
        hears_losses: bool = False,
    ) -> None:
        """`now_ms` is wall-clock time, for starts given as an age. `endpoint` is for errors.
        `hears_losses`: the driver will call `connection_lost`."""
        self.max_body_bytes = arguments.check_body_bytes(max_body_bytes)
        self._files = LogFiles(arguments.check_bool("direct", direct))
        self._endpoint = endpoint
        self.aim = Aim()
        self._selection = selection
        self.topic = check_topic(arguments.check_text("topic", topic))
        self._given = check_given(start)
        self._start = StartAt() if isinstance(start, Mapping) else parse_start(start, now_ms)
        self._queues = None if queues is None else arguments.check_queues(queues)
        self._follow = arguments.check_bool("follow", follow)
        # queues that must exist. For a consumer that follows, those in `start` may appear later.
        self._named = (self._queues or set()) | (set() if follow else self._given.keys())
        self._timeout_ms = arguments.check_ms("timeout_ms", timeout_ms)
        self._asked = OpenRequest(self._timeout_ms, hears_losses)
        self._unread: tuple[messages.Pulled, bytes | memoryview] | None = None
        # whether the broker has said where the queues begin and end: from then on nothing is missed
        self.described = False
        self._known = 0
        self._ends: dict[int, int] = {}
        self._end_at: Mapping[int, int] | int = {}
        # where reading each queue began; empty until the broker has named the queues
        self.starts: dict[int, int] = {}
        self.cursors: dict[int, int] = {}
        self._at_hand = RecordsAtHand()
        self._refused: PenstockError | None = None
        self._aside = QueuesAside(self.topic)
        self._now_ms = 0
        self.losses = Losses(self.topic)

    def end_at(self, ends: Mapping[int, int] | int) -> None:
        """Without `follow`: stop before these offsets by queue, or before this one in each."""
        self._end_at = ends

    @property
    def ready(self) -> bool:
        """Whether records have arrived and are not taken yet."""
        return bool(self._at_hand)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to be taken of each queue."""
        return self.cursors | self._at_hand.starts

    @property
    def left(self) -> int:
        """Without `follow`: how many offsets are left until the end."""
        at = self.positions
        return sum([max(0, end - at[queue]) for queue, end in self._ends.items()])

    @property
    def finished(self) -> bool:
        """Whether everything that was there at the start has been taken."""
        return self.described and not self._at_hand and self._is_at_ends(self._ends)

    def _is_at_ends(self, queues: Collection[int]) -> bool:
        return not self._follow and all(self.cursors[at] >= self._ends[at] for at in queues)

    @property
    def _all_asked(self) -> bool:
        """Whether there is nothing left to ask for now."""
        if not self._aside:
            return self._is_at_ends(self._ends)
        return not (readable := self._readable) or self._is_at_ends(readable)

    @property
    def _readable(self) -> set[int]:
        """The queues to ask for, without those that could not be read a moment ago."""
        return self._aside.others(self.cursors, self._now_ms)

    def outgoing(self, now_ms: int) -> list[tuple[bytes, ...]]:
        """The request to send now, if any. Raises BrokerTimeout if no answer has come for long."""
        self._now_ms = now_ms
        if self._refused is not None:
            return []
        if not self._asked.is_open:
            direct = self._files.usable(now_ms)
            if self.described and (self._at_hand.is_enough(direct) or self._all_asked):
                return []
            self._asked.repeats.begin(now_ms)
            return [(self._ask(direct),)]
        if self._asked.repeats.is_silent(now_ms):
            raise self.aim.elsewhere or silent(self._endpoint, self._timeout_ms)
        if not self._asked.repeats.take_due(now_ms):
            return []
        if self._asked.has_to_change(self.aim.run):
            self._ask(self._files.usable(now_ms))
        return [(self._asked.header,)]

    def not_connected(self, now_ms: int) -> None:
        self.aim.away = True  # the request could not be sent: it is tried again soon
        self._asked.repeats.not_sent(now_ms)

    def connection_lost(self) -> None:
        """The reader that held the pull may be gone, so ask its successor soon."""
        self._asked.repeats.soon()

    @property
    def is_waiting_long(self) -> bool:
        """Whether the next repeat of the request is far off, unless a connection is lost."""
        return self._asked.repeats.is_rare

    def given_up(self, max_bytes: int) -> None:
        """An answer was too long to receive. The error is raised after what came before it."""
        self._asked.close()
        self._refused = answer_too_long(self._endpoint, max_bytes)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in."""
        if not self._asked.is_open and self._aside:
            return self._aside.wait_ms(now_ms)
        return self._asked.repeats.wait_ms(now_ms)

    def _ask(self, direct: bool) -> bytes:
        number, run = self._asked.next_number(), self.aim.run
        if self.described:
            return self._asked.put(encode(self._pull(number, direct)), run)
        asked = messages.Describe(number, self.topic, self._start.at_ms, run)
        return self._asked.put(encode(asked), run)

    def _pull(self, number: int, direct: bool) -> messages.Pull:
        # a consumer of only some queues must not be woken when others are added
        known = self._known if self._queues is None else _ANY_NUMBER
        wait_ms = min(WAIT_MS, self._timeout_ms // 2)
        cursors = self._asked_cursors()
        ends: dict[int, int] = {}
        if not self._follow:
            cursors = {queue: at for queue, at in cursors.items() if at < self._ends[queue]}
            ends = {queue: self._ends[queue] for queue in cursors}
        wanted = None if self._selection is None else self._selection.subscription(ends)
        most = self._most_bytes(direct)
        asked = number, self.topic, cursors, known, most, wait_ms, wanted, direct
        return messages.Pull(*asked, self.aim.run, messages.MOST_CREDIT if self._follow else 1)

    def _most_bytes(self, direct: bool) -> int:
        """How many bytes one pull asks for."""
        return pull_bytes(direct)

    def _asked_cursors(self) -> dict[int, int]:
        return {queue_id: self.cursors[queue_id] for queue_id in self._readable}

    def received(self, parts: Sequence[bytes | memoryview], now_ms: int) -> None:
        """Take an answer of the broker."""
        answer = messages.decode_consume_answer(bytes(parts[0]))
        if not self._asked.is_answered_by(answer) or not self.aim.heard(answer):
            return
        self._unread = None
        if not self._asked.take(answer, self.cursors, now_ms):
            return
        if isinstance(answer, messages.Refused):
            error = error_from_refusal(answer)
            if isinstance(error, QueueNotFound) and self.described and self._queues is None:
                self.described = False  # the topic has fewer queues now: ask which
            else:  # `take` raises it, after what came before it
                self._refused = error
        elif isinstance(answer, messages.Described):
            self._begin(answer)
        elif isinstance(answer, messages.Pulled):
            if answer.places:
                self._unread = answer, parts[1]
            else:
                self._pulled(answer, parts[1])

    @property
    def has_unread(self) -> bool:
        """Whether an answer has come whose records must be fetched before the next request."""
        return self._unread is not None

    def fetch(self, now_ms: int) -> memoryview | None:
        """Read that answer's records. It changes no state, so another thread may do it, and fail.

        If the caller asks for the next batch instead, the same answer is fetched again.
        """
        assert self._unread is not None
        return self._files.read(*self._unread, now_ms)

    def fetched(self, records: memoryview | None) -> None:
        """Take what `fetch` returned. After None the records are pulled again, by the socket."""
        assert self._unread is not None
        (answer, _), self._unread = self._unread, None
        if records is not None:
            self._pulled(answer, records)

    def _begin(self, answer: messages.Described) -> None:
        from penstock.shared.next_steps import no_such_queue, no_such_topic

        if not answer.exists and (self.starts or not self._follow):
            raise no_such_topic(self.topic, answer.hint)
        if self.starts:
            return self._go_on(answer)
        found = {queue.queue_id: queue for queue in answer.queues}
        wanted = found.keys() if self._queues is None else self._queues
        if answer.exists and (missing := sorted(self._named - found.keys())):
            raise no_such_queue(self.topic, missing[0], 1 + max(found), self.aim.store)
        for queue_id in wanted:
            queue = found.get(queue_id, messages.QueueRange(queue_id, 0, 0, 0))
            self.cursors[queue_id] = self._first(queue)
            self._ends[queue_id] = last_offset(self._end_at, queue)
        if not self._follow:  # a start past the end would otherwise read nothing, silently
            check_within(self._start, [found[each] for each in wanted & found.keys()], self.topic)
        self._known = sum(1 for queue in answer.queues if queue.max_offset)
        self.starts = dict(self.cursors)
        self.described = True

    def _go_on(self, answer: messages.Described) -> None:
        """The topic has lost queues: go on in the others from where they were."""
        for gone in self.cursors.keys() - {queue.queue_id for queue in answer.queues}:
            del self.cursors[gone]
            self._ends.pop(gone, 0)
        self._known = sum(1 for queue in answer.queues if queue.max_offset)
        self.described = True

    def _first(self, queue: messages.QueueRange) -> int:
        given = self._given.get(queue.queue_id)
        return first_offset(self._start, queue) if given is None else given

    def _pulled(self, answer: messages.Pulled, payload: bytes | memoryview) -> None:
        """Move the cursors past the records that have come, and keep the records to be taken."""
        at, of = 0, Source(self.topic, self.aim.store)
        for part in answer.slices:
            cursor = self.cursors[part.queue_id]
            if cursor < part.min_offset:
                self._skip(part.queue_id, cursor, part.min_offset)
            elif cursor > part.next_offset:
                self.losses.went_back(part.queue_id, cursor, part.next_offset)
                self.cursors[part.queue_id] = part.next_offset
            else:
                # messages stored after the consumer began are not part of what it reads
                end = part.next_offset if self._follow else self._ends[part.queue_id]
                place = at, at + part.size
                if not at <= place[1] <= len(payload):
                    raise ProtocolError(
                        "an answer is shorter than its header says", place, str(answer)
                    )
                self._at_hand.put(
                    Part(part.queue_id, cursor, part.next_offset, end, payload, place, of)
                )
                self.cursors[part.queue_id] = min(part.next_offset, end)
            at += part.size
        for queue_id, *words in map(astuple, answer.unreadable):
            self._aside.put(queue_id, self._now_ms, words)
        if self._queues is None and self._follow:
            for queue_id in answer.queue_ids:
                if queue_id not in self.cursors:
                    self.cursors[queue_id] = self._first(messages.QueueRange(queue_id, 0, 0, 0))
            self._known = len(answer.queue_ids)

    def take(self) -> list[Message]:
        """Messages that have come, up to PULL_BYTES or one whole part; [] when there are none.

        Raises the broker's refusals, and QueueUnreadable: see QueuesAside. What came before an
        error is returned first; without `follow`, so is all that the other queues have.
        """
        return self._take(self._messages)

    def take_bodies(self) -> list[bytes | Message]:
        """Like `take`, but only the bodies; the whole message where its body must be decoded."""
        return self.take_as(lambda part: part.bodies(self.max_body_bytes), lambda found: found)

    def take_as(self, of_part: OfPart[_T], of_messages: OfMessages[_T]) -> list[_T]:
        """Like `take`, but converted: whole parts at once, or messages where some are left out."""

        def read(part: Part) -> Sequence[_T]:
            wants_all = self._selection is None and part.stop <= part.end
            found, marked = of_part(part) if wants_all else ((), True)
            return of_messages(self._messages(part)) if marked else found

        return self._take(read)

    def _take(self, read: Callable[[Part], Sequence[_T]]) -> list[_T]:
        taken: list[_T] = []
        left = PULL_BYTES
        while self._at_hand:
            part = self._at_hand.first
            if taken and part.size > left:
                break
            try:
                found = read(part)
            except StoreDamaged as error:
                self._put_aside(part, error)
                continue
            except PenstockError:
                if not taken:
                    self._go_back()
                    raise
                break
            self._at_hand.pop()
            left -= part.size
            taken += found
        if not taken:
            self._raise_errors()
        return taken

    def _raise_errors(self) -> None:
        """Raise what is pending, now that everything before it is taken."""
        if self._refused is not None:
            error, self._refused = self._refused, None
            raise error
        if self._follow or self._all_asked:
            self._aside.raise_next()

    def _put_aside(self, part: Part, error: StoreDamaged) -> None:
        """Make the part's queue wait at the damaged message. What precedes that comes first."""
        if (error.queue_offset or 0) > part.start:
            return self._at_hand.split_first(*part.split(self.max_body_bytes))
        self._go_back(part.queue_id)
        self._aside.put_error(part.queue_id, self._now_ms, error)

    def _messages(self, part: Part) -> list[Message]:
        found, marked = part.messages(self.max_body_bytes)
        while found and found[-1].queue_offset >= part.end:
            found.pop()
        if marked:
            found = self.losses.without_lost(found)
        return found if self._selection is None else self._selection.pick(found)

    def _go_back(self, queue_id: int | None = None) -> None:
        """Drop what has come and is not taken, of one queue or of all, and ask for it again."""
        self.cursors |= self._at_hand.drop(queue_id)
        # the answer on its way begins where the cursors were before
        self._asked.close()
        self._unread = None

    def _skip(self, queue_id: int, cursor: int, min_offset: int) -> None:
        """Go on past messages that no longer exist."""
        self.losses.pass_over(queue_id, cursor, min_offset)
        self.cursors[queue_id] = min_offset
