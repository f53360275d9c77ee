"""What the driver does with staged rows: it decides on a batch, once, and publishes it.

    few rows    one frame:  the messages, and BATCH moves                     decided and published
    many        one frame:  BATCH moves, MANIFEST and PUBLISHED are there     decided
                a frame for each block: its messages, and PUBLISHED moves     published, bit by bit

The broker stores such a frame only if the ledger is where the frame says (see ledger.py), whole or
not at all. So only one of all attempts at a batch is decided on, and each of its blocks is stored
once, however many drivers try it, including one that was believed dead. If a batch is decided but
not fully published, the next commit of the same writer publishes it first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.client.core.blocks import Block
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.records import Staged
from penstock.client.reading.consumer import Consumer
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import (
    BrokerTimeout,
    MessageNotFound,
    OffsetOutOfRange,
    OffsetsMoved,
    StoreDamaged,
)
from penstock.shared.faults import crash_point
from penstock.shared.messaging.ledger import NONE, State, group_of, moves, told
from penstock.shared.messaging.staged_records import decode_records
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC, STAGING_TOPIC
from penstock.spark.sink.blocks import BLOCK_RECORDS, StoredBlock, ids_of, stage, stage_bytes
from penstock.spark.sink.options import SinkOptions

# How many blocks are in flight at once, as many as a task stages.
IN_FLIGHT = 16
# The most bytes of inline blocks that are published in one frame.
ONE_FRAME_BYTES = 512 << 10
_MANIFESTS, _BLOCKS = 0, 1  # queues of the staging topic


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The blocks of a batch, in their order."""

    number: int
    # whether the ledger remembers the writer after this batch
    keep: bool
    blocks: list[Staged]


class Publisher:
    """Publishes one writer's batches, on the driver. It is connected within its `with` block."""

    def __init__(self, options: SinkOptions, writer: str) -> None:
        self._options, self._group = options, group_of(writer)
        self._producer: BlockProducer = options.producer()
        self._query: MessageQuery | None = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._query is not None:
            self._query.close()
        self._producer.__exit__(kind, error, trace)

    def commit(self, number: int, blocks: Sequence[StoredBlock], keep: bool) -> bool:
        """Publish a batch. False if one of this or a higher number was published before.

        Batches are numbered from 0 up. Without `keep` it is the writer's only batch, and the ledger
        forgets the writer. Durable on return. Raises the broker's refusals, ConnectError, and
        OffsetOutOfRange if staged rows have expired; the same commit may be tried again.
        """
        producer = self._producer
        producer.route(OFFSETS_TOPIC)
        after = number + 1 if keep else NONE
        whole = self._in_one_frame(blocks)
        place = NONE
        if whole is None:
            manifest = Manifest(number, keep, [self._staged(each) for each in blocks])
            place = self._put(manifest)
        # the expected state, as batches mostly follow each other; otherwise the refusal corrects it
        state: State = (number if keep and number else NONE, NONE, NONE)
        while True:
            try:
                if whole is not None:
                    self._send(whole, state, (after, NONE, NONE)).result()
                else:
                    decided = (number + 1, place, 0)
                    crash_point("spark.before_decision")
                    self._send(producer.block(), state, decided).result()
                    crash_point("spark.decided")
                    self._publish(manifest, decided)
                crash_point("spark.published")
                return True
            except OffsetsMoved as error:
                state = told(state, error.offsets)
            if state[1] != NONE:
                self._publish(self._read(state[1]), state)
                state = (state[0], NONE, NONE)
            if state[0] > number:
                return False

    def _in_one_frame(self, blocks: Sequence[StoredBlock]) -> Block | None:
        """The whole batch as one block, if it is small enough; else None."""
        records = [decode_records(each) for each in blocks if isinstance(each, bytes)]
        size = sum(len(each.payload) for each in records)
        runs = sum(len(each.runs) for each in records)
        if len(records) < len(blocks) or size > ONE_FRAME_BYTES or runs > BLOCK_RECORDS:
            return None
        whole = self._producer.block()
        for each in records:
            whole.put(each)
        return whole

    # --- publishing what is decided ---

    def _publish(self, manifest: Manifest, state: State) -> None:
        """Publish the blocks that are still unpublished, from this state of the ledger on."""
        place = state[1]
        while state[2] < len(manifest.blocks):
            moved = self._publish_from(manifest, state)
            # another driver is publishing the same batch: go on from where it is
            if moved is None or moved[1] != place:
                return
            state = moved

    def _publish_from(self, manifest: Manifest, state: State) -> State | None:
        """Publish the remaining blocks. Returns the ledger's state if another driver moved it."""
        batch, place, first = state
        done = (batch if manifest.keep else NONE, NONE, NONE)
        on_their_way: deque[tuple[State, SendFuture]] = deque()
        moved: State | None = None
        for at, staged in enumerate(manifest.blocks[first:], first):
            if len(on_their_way) == IN_FLIGHT:
                moved = _outcome(*on_their_way.popleft()) or moved
                if moved is not None:
                    break
            before = (batch, place, at)
            after = done if at + 1 == len(manifest.blocks) else (batch, place, at + 1)
            on_their_way.append((before, self._send(self._block(staged), before, after)))
        while on_their_way:
            moved = _outcome(*on_their_way.popleft()) or moved
        return moved

    def _block(self, staged: Staged) -> Block:
        block = self._producer.block()
        if staged.shape == self._producer.encoder.terms.shape:
            block.name(staged)
        else:  # the broker was restarted with another shape
            block.put(decode_records(self._bytes(staged.ids)))
        return block

    def _send(self, block: Block, before: State, after: State) -> SendFuture:
        return self._producer.send_block(block, self._group, moves(before, after))

    # --- what is staged ---

    def _staged(self, block: StoredBlock) -> Staged:
        if isinstance(block, bytes):
            return stage(self._producer, decode_records(block), _BLOCKS).result()
        return block

    def _put(self, manifest: Manifest) -> int:
        """Stage the manifest, and return its queue offset."""
        ids = ids_of(stage_bytes(self._producer, msgspec.json.encode(manifest), _BLOCKS))
        root = self._producer.send(
            STAGING_TOPIC, msgspec.json.encode(ids), queue=_MANIFESTS, ack="durable"
        )
        return root.result().queue_offset

    def _read(self, place: int) -> Manifest:
        timeout_ms = self._options.timeout_ms
        with Consumer(
            topic=STAGING_TOPIC,
            queues=[_MANIFESTS],
            start={_MANIFESTS: place},
            **self._options.arguments("consumers"),
        ) as consumer:
            came = consumer.poll(timeout_ms / 1000)
        if not came:
            raise BrokerTimeout("the list of staged rows did not come", f"{timeout_ms} ms")
        if came[0].queue_offset != place:
            raise _expired(f"the list of them, {STAGING_TOPIC}/{_MANIFESTS}@{place}")
        try:
            ids = msgspec.json.decode(came[0].body, type=tuple[str, ...])
            return msgspec.json.decode(self._bytes(ids), type=Manifest)
        except msgspec.MsgspecError as error:
            raise StoreDamaged("the list of staged rows cannot be read", error) from error

    def _bytes(self, ids: Sequence[str]) -> bytes:
        if self._query is None:
            self._query = MessageQuery(**self._options.arguments("consumers"))
        parts = []
        for each in ids:
            try:
                parts.append(bytes(self._query.by_id(each).body))
            except MessageNotFound as error:
                raise _expired(each) from error
        return b"".join(parts)


def _outcome(before: State, future: SendFuture) -> State | None:
    """None if the frame is stored, else the present state of the ledger."""
    try:
        future.result()
        crash_point("spark.block_published")
    except OffsetsMoved as error:
        return told(before, error.offsets)
    return None


def _expired(value: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        "staged rows have expired before they were published",
        value,
        "the rest of the batch is lost here: write it again under another name",
    )
