"""Blocks of a consumer that work exactly once, from ordinary code: `consumer.exactly_once()`.

    with consumer.exactly_once() as out:
        out.send("bills", bill_of(message.body))

The end of the block stores its outputs and the offsets of its inputs at once, and waits until the
disk has them. The inputs are what the consumer has handed out since the last block. Where another
member has done them meanwhile nothing is stored, and the consumer goes on where that one is. This
file knows what a consumer has handed out by `Source` alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from penstock.client.core import log
from penstock.client.core.arguments import check_text
from penstock.client.core.blocks import Block, Input, Moves, Queue, Values
from penstock.client.core.send_options import MessageFields, whole_message
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import SendFuture
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import (
    InvalidArgument,
    OffsetsMoved,
    PenstockError,
    StoreUnavailable,
)
from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.names import check_group

# Told once: whether a block is stored.
Tell = Callable[[bool], None]


class Source(Protocol):
    """A consumer, as far as blocks need it. `parts` are what a block has read, in its own form."""

    def inputs(self) -> Mapping[Queue, Input] | None:
        """What it has handed out since the last block; None where some of that was taken back.

        Raises InvalidArgument where what came before that is not done, or others have some of it.
        """

    def on_way(self) -> Any:
        """The block of these inputs is sent: they are no longer those of the next one. What is to
        be said of them later is said by what this returns."""

    def done(self, parts: Any) -> None:
        """The block of these inputs is stored."""

    def go_on(self, offsets: Mapping[Queue, int], parts: Sequence[Any]) -> None:
        """Hand out what is from these offsets on, and nothing else of these queues before."""

    def back(self) -> None:
        """Hand out once more what was handed out since the last block."""


class _Sent:
    """A block on its way: what it has read, what it moves, and the future of its frame."""

    __slots__ = ("future", "inputs", "moves", "parts", "tell")

    def __init__(
        self,
        inputs: Mapping[Queue, Input],
        moves: Moves,
        parts: Any,
        future: SendFuture,
        tell: Tell,
    ) -> None:
        self.inputs, self.moves, self.parts = inputs, moves, parts
        self.future, self.tell = future, tell


class ExactlyOnce:
    """One consumer's blocks, one after the other.

    Blocks that are on their way may be several. Each begins where the one before it ends, and the
    broker compares: if one is refused, those after it on the same queues are. So what one program
    believes too early has no effect, and on a refusal all is taken back that was not stored.

    Whoever waits for the broker holds the lock: a thread may still wait whose caller has given up.
    """

    def __init__(self, group: str, source: Source, connect: Callable[[], BlockProducer]) -> None:
        """`connect` makes the producer that stores the blocks, which is closed with this."""
        self._group = check_group(check_text("group", group))
        self._source = source
        self._connect = connect
        self._lock = threading.RLock()
        self._is_closed = False
        # the block that has begun and not ended
        self._open: BlockOutputs | None = None
        self._producer: BlockProducer | None = None
        self._values = Values()
        self._on_way: deque[_Sent] = deque()
        # Inputs were taken back since the last block ended. What the program has in hand may be
        # some of them, so what it makes of that does not count.
        self._is_void = False

    @property
    def is_busy(self) -> bool:
        """Whether a block is on its way."""
        return bool(self._on_way)

    @property
    def producer(self) -> BlockProducer:
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(
                    "the consumer is closed", self._group, "make another one: GroupConsumer"
                )
            if self._producer is None:
                self._producer = self._connect()
                if self._is_closed:  # meanwhile, and it was not there to be closed
                    self._producer.close_at_once()
            # also where it was not answered the last time
            self._producer.route(OFFSETS_TOPIC)
            return self._producer

    def begin(self, block: BlockOutputs) -> None:
        """A block begins. Raises InvalidArgument while another one is open: whose the inputs are
        could not be told, so the other one stores nothing either, and all of them come again."""
        with self._lock:
            if self._open is not None:
                self._is_void = True
                raise InvalidArgument(
                    "another block of this consumer is open",
                    f"group {self._group}",
                    "end a block before the next one begins; give each thread or task a consumer",
                )
            self._open = block

    def end(self, block: Block, ahead: int, tell: Tell, error: BaseException | None) -> None:
        """The block that has begun ends, by an error or not: see `store`."""
        with self._lock:
            self._open = None
            if error is None:
                self.store(block, ahead, tell)
            else:
                self.again()

    def store(self, block: Block, ahead: int, tell: Tell) -> None:
        """Store a block, and go on after it. On return up to `ahead` blocks may be on their way.

        `tell` is called with True once it is stored, with False where its inputs are done by
        somebody else, or come again. Raises what the broker refuses it with, or one before it. Then
        the inputs come again, and it is found out whether the block is stored all the same.
        """
        with self._lock:
            self._store_after(block, ahead, tell)

    def _store_after(self, block: Block, ahead: int, tell: Tell) -> None:
        self.settle(max(ahead - 1, 0))
        if self._is_void:
            self.again()
            tell(False)
            return
        try:
            inputs = self._source.inputs()
        except InvalidArgument:
            # the others that have some of them are told at the end of their block
            self.again()
            self._is_void = True
            raise
        if inputs is None:
            log().info("group %s: what a block has read was taken back meanwhile", self._group)
            self.again()
            tell(False)
            return
        if not inputs:
            if len(block):
                raise InvalidArgument(
                    "the block has outputs and no inputs",
                    f"{len(block)} messages",
                    "read from the consumer before the block, or send with a Producer",
                )
            tell(True)
            return
        parts = self._source.on_way()
        try:
            if ahead and self._values.knows(inputs):
                self._send(block, inputs, parts, tell)
            else:
                self._store(block, inputs, parts, tell)
        except BaseException:
            # what the broker has of those before is known before any of it comes again
            self._give_up()
            self._is_void = False
            self._values.forget(inputs, self._values.moves(inputs))
            self._source.go_on({name: each.begin for name, each in inputs.items()}, [parts])
            raise

    def _send(self, block: Block, inputs: Mapping[Queue, Input], parts: Any, tell: Tell) -> None:
        """Send a block after others; nobody waits for it here."""
        producer = self.producer
        for topic in block.topics:
            producer.route(topic)
        moves = self._values.moves(inputs)
        future = producer.send_block(block, self._group, moves)
        # what the next block goes by: the broker refuses that one too if this is refused
        self._values.stored(inputs)
        self._on_way.append(_Sent(inputs, moves, parts, future, tell))

    def _store(self, block: Block, inputs: Mapping[Queue, Input], parts: Any, tell: Tell) -> None:
        if not self.settle():
            # of queues that were taken back this block has read what does not count any more
            self._source.go_on(self._places(inputs), [parts])
            self.again()
            tell(False)
            return
        if (passed := self._values.passed(inputs)) is not None:
            log().info("group %s: what a block has read is done: %s", self._group, passed)
            self._source.go_on(passed, [parts])
            tell(False)
            return
        producer = self.producer
        for topic in block.topics:
            producer.route(topic)
        while True:
            try:
                producer.send_block(block, self._group, self._values.moves(inputs)).result()
            except OffsetsMoved as error:
                back = self._values.moved(inputs, error)
                if back is None:
                    continue
                log().warning("group %s: nothing of a block is stored, %s", self._group, error)
                self._source.go_on(back, [parts])
                tell(False)
                return
            self._values.stored(inputs)
            self._source.done(parts)
            tell(True)
            return

    def settle(self, most: int = 0) -> bool:
        """Wait until at most this many blocks are on their way; False where one was refused, and
        then none is. Raises what the broker has answered otherwise."""
        with self._lock:
            return self._settle(most)

    def _settle(self, most: int) -> bool:
        while len(self._on_way) > most or self._on_way and self._on_way[0].future.done():
            sent = self._on_way[0]
            try:
                sent.future.result()
            except OffsetsMoved as error:
                log().warning("group %s: nothing of a block is stored, %s", self._group, error)
                self._take_back_refused()
                return False
            except BaseException:
                self._give_up()
                raise
            self._on_way.popleft()
            self._source.done(sent.parts)
            sent.tell(True)
        return True

    def _take_back_refused(self) -> None:
        """One is refused: each of those after it has an outcome of its own."""
        refused = []
        while self._on_way:
            sent = self._on_way.popleft()
            try:
                sent.future.result()
            except OffsetsMoved as error:
                self._values.refused(sent.inputs, sent.moves, error)
                refused.append(sent)
            except BaseException:
                self._on_way.appendleft(sent)
                self._give_up(refused)
                raise
            else:
                # of other queues than the refused one; or its inputs' beginning was reached by
                # somebody else, and then it was for this block to go on
                self._values.stored(sent.inputs)
                self._source.done(sent.parts)
                sent.tell(True)
        self._go_on(refused)

    def _give_up(self, refused: Sequence[_Sent] = ()) -> None:
        """Of those on their way nobody knows whether they are stored: wait for what can be known,
        and have their inputs come again. The next block of a queue finds out."""
        left = list(refused)
        while self._on_way:
            sent = self._on_way.popleft()
            if sent.future.exception() is None:
                self._source.done(sent.parts)
                sent.tell(True)
            else:
                left.append(sent)
        for sent in reversed(left):
            self._values.forget(sent.inputs, sent.moves)
        self._go_on(left)

    def _go_on(self, left: Sequence[_Sent]) -> None:
        if not left:
            return
        self._is_void = True
        begins: dict[Queue, Input] = {}
        for sent in left:
            for name, each in sent.inputs.items():
                begins.setdefault(name, each)
        self._source.go_on(self._places(begins), [sent.parts for sent in left])
        for sent in left:
            sent.tell(False)

    def _places(self, inputs: Mapping[Queue, Input]) -> dict[Queue, int]:
        """Where queues go on: at their values, where these are known."""
        return {
            name: each.begin if (at := self._values.at(name)) == NONE else at
            for name, each in inputs.items()
        }

    def again(self) -> None:
        """Have the inputs since the last block come again."""
        with self._lock:
            self.settle()
            self._source.back()
            self._is_void = False

    def finish(self) -> None:
        """Nobody will ask any more: wait for all outcomes. Inputs of what is not stored are for
        others."""
        try:
            self.settle()
        except PenstockError as error:
            log().warning(
                "group %s: whether a block is stored is not known: %s", self._group, error
            )

    def close(self, at_once: bool = False) -> None:
        """Every block has its outcome; or, `at_once`, nobody waits for those that have none."""
        # without the lock: a thread may hold it that waits for the broker
        self._is_closed, producer = True, self._producer
        if producer is not None:
            producer.close_at_once() if at_once else producer.close()


class BlockOutputs:
    """What a block is given: sends that count with the block, or not at all.

    After the block `stored` says whether they do: False where the inputs were done by another
    member, or come again. Of a block that is on its way it waits for the outcome.
    """

    def __init__(self, work: ExactlyOnce, ahead: int = 0) -> None:
        """`ahead` blocks may be on their way when this one ends."""
        self._work, self._ahead = work, ahead
        self._block = work.producer.block()
        self._open = self._ended = False
        self._stored: bool | None = None

    @property
    def stored(self) -> bool:
        """Whether the block is stored. Raises what the broker has answered, if it is asked here
        for the first time."""
        if self._stored is None and not self._open:
            self._work.settle()
        return bool(self._stored)

    def _tell(self, stored: bool) -> None:
        self._stored = stored

    def send(self, topic: str, body: Body, **fields: Unpack[MessageFields]) -> None:
        """Send one message with the block; see `Producer.send` for its fields. All outputs of a
        block go in one frame, so they are bounded (1 MiB and more, by the broker's largest
        message).

        Raises InvalidMessage or InvalidArgument for what can be seen to be wrong here.
        """
        if not self._open:
            raise StoreUnavailable(
                "the block has ended", topic, "send inside of: with consumer.exactly_once() as out"
            )
        self._block.add(topic, *whole_message(body, **fields))

    def __enter__(self) -> BlockOutputs:
        if self._ended:
            raise InvalidArgument(
                "the block has ended",
                None,
                "begin another one: with consumer.exactly_once() as out",
            )
        self._work.begin(self)
        self._open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open, self._ended = False, True
        self._work.end(self._block, self._ahead, self._tell, error)
