"""What a program tells its group member to do, shared by synchronous and asyncio code.

Nothing here waits for anything but the lock, so the two need no versions of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

from penstock.client.core.arguments import check_at_least, check_queues, check_text, wrong_type
from penstock.client.core.groups.member_core import Back
from penstock.client.core.groups.process_queue import Handful
from penstock.client.core.requests import Request
from penstock.client.core.send_options import ReplyFields
from penstock.client.core.sending.encoding import Body
from penstock.client.core.start import MOST_OFFSET
from penstock.client.groups.blocks import GroupInputs, HandedOut
from penstock.client.groups.exactly_once import ExactlyOnce
from penstock.client.groups.member_loop import MemberLoop
from penstock.client.groups.message import Batch, Judge
from penstock.client.groups.workers import Pace, settle
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import BrokerTimeout, InvalidArgument
from penstock.shared.names import RETRY_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.arrow.columns import Columns
    from penstock.client.groups.blocks import Holder

Partition = tuple[str, int]


class GroupControl:
    """Where a member is, and where it is to go on."""

    def __init__(self) -> None:
        self._pace = Pace()
        # what `poll` has returned and nobody has acknowledged: `commit` will
        self._polled: list[HandedOut] = []
        # the last handful of each thread or task that iterates
        self._iterated: dict[Holder, HandedOut] = {}
        self._blocks: ExactlyOnce | None = None
        # Replies or AioReplies, once a reply was sent
        self._replies: Any = None

    if TYPE_CHECKING:
        _max_body_bytes: int

        # the member's
        @property
        def loop(self) -> MemberLoop: ...
        def _open(self) -> MemberLoop: ...
        def _live(self) -> MemberLoop: ...
        def _block_producer(self) -> BlockProducer: ...
        def _refuse(self) -> None: ...
        def _make_replies(self) -> Any: ...

    def _exactly_once(self) -> ExactlyOnce:
        """What stores this member's blocks. Raises InvalidArgument."""
        options = self._open().core.options
        if options.model == "broadcasting":
            raise InvalidArgument(
                "a broadcasting member keeps its offsets in a file of its own",
                options.group,
                "leave broadcasting=True out to work exactly once",
            )
        with self.loop.lock:
            if self._blocks is None:
                inputs = GroupInputs(self.loop, self._handed_out)
                self._blocks = ExactlyOnce(options.group, inputs, self._block_producer)
            return self._blocks

    def _handed_out(self) -> list[HandedOut]:
        """What was handed out, including what is no longer in hand."""
        return [*self._polled, *self._iterated.values()]

    def _holder(self) -> Holder:
        """The thread or task that asks for messages now."""
        return ref(threading.current_thread())

    def _iterate(self, handful: Handful) -> HandedOut:
        """Note a handful that is about to be iterated: `stop` advances with each message."""
        holder = self._holder()
        with self.loop.lock:
            held = self._iterated.items()
            self._iterated = {of: each for of, each in held if _is_held(each)}
            self._iterated[holder] = found = HandedOut(handful, handful.start, holder)
        return found

    @property
    def assignment(self) -> dict[Partition, int]:
        """This member's queues as (topic, queue), and how far each is done."""
        with self.loop.lock:
            return self.loop.core.offsets

    @property
    def committed(self) -> dict[Partition, int]:
        """The offsets that the broker has confirmed, below which nothing is handed out again. Empty
        for a broadcasting member, which commits to its own file."""
        with self.loop.lock:
            return dict(self.loop.core.membership.committed)

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on at another offset of one of this member's queues. Messages that were returned from
        it and are not committed no longer count. Raises InvalidArgument.
        """
        check_at_least("offset", offset, 0, MOST_OFFSET)
        with self.loop.lock:
            self._check_own([_partition((topic, queue_id))])
            self.loop.core.seek((topic, queue_id), offset)
            self.loop.wake()

    def pause(self, *queues: Partition) -> None:
        """Return nothing more from these queues, (topic, queue), until `resume`; none named: all.

        They stay this member's. Raises InvalidArgument.
        """
        self._pause(queues, True)

    def resume(self, *queues: Partition) -> None:
        """Go on with these paused queues; none named: with all."""
        self._pause(queues, False)

    def _pause(self, queues: Iterable[Partition], paused: bool) -> None:
        with self.loop.lock:
            core = self.loop.core
            chosen = [_partition(each) for each in queues]
            self._check_own(chosen)
            core.pause(chosen or list(core.queues), paused)
            self.loop.wake()

    def assign(self, queues: Mapping[str, Iterable[int]] | None) -> None:
        """Take exactly these queues of these topics, whoever else is a member; None: share them
        with the others again. If another member has a queue, this one waits for it.
        """
        chosen = None
        if queues is not None:
            chosen = _assigned(queues)
        loop = self._open()
        with loop.lock:
            loop.core.assign(chosen)
            loop.wake()

    def _check_own(self, queues: Iterable[Partition]) -> None:
        own = self._live().core.queues
        for each in queues:
            if each not in own:
                names = ", ".join(f"{topic}/{queue}" for topic, queue in sorted(own))
                raise InvalidArgument(
                    "this queue is not the member's", f"{each[0]}/{each[1]}", f"it has: {names}"
                )

    @property
    def _judge(self) -> Judge:
        # made each time: a consumer that kept it would refer to itself, and never be collected
        return Judge(self._tell_of, self._answer)

    def _answer(self, request: Request, body: Body, fields: ReplyFields) -> Any:
        """Does what `message.reply` promises."""
        with self.loop.lock:
            if self.loop.ended:
                self._refuse()
            if self._replies is None:
                self._replies = self._make_replies()
        return self._replies.answer(request, body, fields)

    def _tell_of(self, handful: Handful, place: int, back: Back | None) -> None:
        """Report that a message which was iterated or polled is done, or is to come again."""
        loop, core = self.loop, self.loop.core
        with loop.lock:
            if back is not None and core.options.orderly:
                core.failed(handful, back, loop.now_ms())
            elif back is not None:
                core.back(handful, back, loop.now_ms(), loop.wall_ms())
            elif place < 0:
                core.done(handful, handful.start, handful.stop)
            else:
                core.done(handful, place, place + 1)
            settle(loop, core, handful.queue)

    def _keep(self, handful: Handful) -> Batch:
        """Note a handful that `poll` is about to return."""
        with self.loop.lock:
            self._polled = [each for each in self._polled if _is_held(each)]
            self._polled.append(HandedOut(handful, handful.stop, self._holder()))
        return Batch(handful, self._judge)

    def _keep_rows(self, handful: Handful | None, made: Columns) -> pa.RecordBatch:
        """Make the rows that `poll_arrow` returns. If that fails, the messages come again."""
        if handful is None:
            return made.together([])
        try:
            (rows,) = made.of_messages(handful.messages)
        except BaseException:
            self._give_back_from(handful, handful.start)
            raise
        kept = self._keep(handful)
        if handful.queue.topic.startswith(RETRY_PREFIX):
            return made.with_topics(rows, [message.topic for message in kept])
        return rows

    def _give_back_from(self, handful: Handful, place: int) -> None:
        """The messages from this place on were not handled: they are handed out again."""
        loop, queue = self.loop, handful.queue
        with loop.lock:
            if place < handful.stop and queue.holds(handful):
                loop.core.untouched(queue.cut(handful, place), loop.now_ms())
                settle(loop, loop.core, queue)

    def _take_back(self) -> None:
        """Leave to others what was returned and never acknowledged."""
        with self.loop.lock:
            for each in self._handed_out():
                if _is_held(each):
                    self.loop.core.untouched(each.handful, self.loop.now_ms())
            self._polled, self._iterated = [], {}

    def _begin_commit(self) -> Callable[[], bool]:
        """Commit what was polled. The result says whether the broker, or the file of a member that
        broadcasts, has it by now. The lock must be held."""
        loop = self.loop
        core = loop.core
        polled, self._polled = self._polled, []
        for handful in [each.handful for each in polled]:
            core.done(handful, handful.start, handful.stop)
        if core.options.model == "broadcasting":
            return loop.keep()
        wanted = core.offsets
        held = {name: core.queues[name] for name in wanted}
        core.commit(loop.now_ms())
        loop.wake()

        def answered() -> bool:
            known = core.membership.committed
            return loop.ended or all(
                known.get(name, -1) >= offset or core.queues.get(name) is not held[name]
                for name, offset in wanted.items()
            )

        return answered


def _is_held(handed_out: HandedOut) -> bool:
    """Whether it is still in hand."""
    return handed_out.handful.queue.holds(handed_out.handful)


def not_committed(group: str, timeout_s: float | None) -> BrokerTimeout:
    return BrokerTimeout(
        "offsets have not been committed",
        f"group {group}, {timeout_s} s",
        "they are still being sent: commit again; penstock status shows the broker",
    )


def _partition(queue: Any) -> Partition:
    """A queue as programs name it. Raises InvalidArgument."""
    if not isinstance(queue, tuple) or len(queue) != 2:
        expected = 'a topic and the number of a queue, as ("orders", 0)'
        raise wrong_type(InvalidArgument, "a queue", queue, expected)
    topic, queue_id = queue
    return check_text("a queue's topic", topic), check_at_least("a queue's number", queue_id, 0)


def _assigned(queues: Any) -> dict[str, frozenset[int]]:
    """The argument of `assign`, checked. Raises InvalidArgument."""
    if not isinstance(queues, Mapping):
        expected = "a mapping from topics to lists of queues, or None"
        raise wrong_type(InvalidArgument, "queues", queues, expected)
    return {
        check_text("a topic of queues", topic): check_queues(ids, f"queues[{topic!r}]")
        for topic, ids in queues.items()
    }
