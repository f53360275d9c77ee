"""Blocks of a consumer that work exactly once, from ordinary code: `consumer.exactly_once()`.

    with consumer.exactly_once() as out:
        out.send("bills", bill_of(message.body))

The end of the block stores its outputs and the offsets of its inputs at once, and waits until the
disk has them. The inputs are what the consumer has handed out since the last block. Where another
member has done them meanwhile nothing is stored, and the consumer goes on where that one is. This
file knows what a consumer has handed out by `Source` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, Unpack

from penstock.client.block_producer import BlockProducer
from penstock.client.core.arguments import check_text
from penstock.client.core.blocks import Block, Input, Queue, Values
from penstock.client.core.send_options import MessageFields, whole_message
from penstock.client.core.sending.encoding import Body
from penstock.shared.errors import InvalidArgument, OffsetsMoved, StoreUnavailable
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.names import check_group

_log = logging.getLogger("penstock")


class Source(Protocol):
    """A consumer, as far as blocks need it."""

    def inputs(self) -> Mapping[Queue, Input] | None:
        """What it has handed out since the last block; None where some of that was taken back.

        Raises InvalidArgument where what came before that is not done.
        """

    def done(self) -> None:
        """The block of these inputs is stored."""

    def go_on(self, offsets: Mapping[Queue, int]) -> None:
        """Hand out what is from these offsets on, and nothing else of these queues before."""

    def back(self) -> None:
        """Hand out once more what was handed out since the last block."""


class ExactlyOnce:
    """One consumer's blocks, one after the other."""

    def __init__(self, group: str, source: Source, connect: Callable[[], BlockProducer]) -> None:
        """`connect` makes the producer that stores the blocks, which is closed with this."""
        self._group = check_group(check_text("group", group))
        self._source = source
        self._connect = connect
        self._producer: BlockProducer | None = None
        self._values = Values()

    @property
    def producer(self) -> BlockProducer:
        if self._producer is None:
            self._producer = self._connect()
            self._producer.route(OFFSETS_TOPIC)
        return self._producer

    def store(self, block: Block) -> bool:
        """Store a block, and go on after it; False where its inputs are done, or come again.

        Raises what the broker refuses it with. Then the inputs come again, and it is found out
        whether the block is stored all the same.
        """
        inputs = self._source.inputs()
        if inputs is None:
            _log.info("group %s: what a block has read was taken back meanwhile", self._group)
            self._source.back()
            return False
        if not inputs:
            if len(block):
                raise InvalidArgument(
                    "the block has outputs and no inputs",
                    f"{len(block)} messages",
                    "read from the consumer before the block, or send with a Producer",
                )
            return True
        try:
            return self._store(block, inputs)
        except BaseException:
            self._values.forget(inputs)
            self._source.go_on({name: each.begin for name, each in inputs.items()})
            raise

    def _store(self, block: Block, inputs: Mapping[Queue, Input]) -> bool:
        if (passed := self._values.passed(inputs)) is not None:
            _log.info("group %s: what a block has read is done: %s", self._group, passed)
            self._source.go_on(passed)
            return False
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
                _log.warning("group %s: nothing of a block is stored, %s", self._group, error)
                self._source.go_on(back)
                return False
            self._values.stored(inputs)
            self._source.done()
            return True

    def again(self) -> None:
        """Have the inputs since the last block come again."""
        self._source.back()

    def close(self) -> None:
        """Every block has its outcome."""
        if self._producer is not None:
            self._producer.close()


class BlockOutputs:
    """What a block is given: sends that count with the block, or not at all.

    After the block `stored` says whether they do: False where the inputs were done by another
    member, or come again.
    """

    def __init__(self, work: ExactlyOnce) -> None:
        self._work = work
        self._block = work.producer.block()
        self._open = False
        self.stored = False

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
        self._open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open = False
        if error is None:
            self.stored = self._work.store(self._block)
        else:
            self._work.again()
