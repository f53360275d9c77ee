"""What the compiled module has; each name is explained in its twin (see `active`)."""

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any

import zmq
from typing_extensions import Buffer

from penstock.shared.formats.index_chains import Ints, Slots
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import (
    Dispatched,
    Properties,
    Ranges,
    RunOf,
    Runs,
    Stamp,
    TextColumn,
)
from penstock.shared.loops.lost_pages import PageWatch as PageWatch
from penstock.shared.loops.pure.client_frame import ClientFrame as ClientFrame
from penstock.shared.loops.pure.encode import (
    RecordMaker as RecordMaker,  # one by one the same methods
)
from penstock.shared.loops.pure.intake import Intake as Intake
from penstock.shared.loops.pure.message import Message as Message
from penstock.shared.loops.pure.queues import QueueNumbers as QueueNumbers
from penstock.shared.loops.pure.sending import PlainSender as PlainSender
from penstock.shared.loops.pure.sending import SendLock as SendLock
from penstock.shared.loops.pure.sends import FrameOfRuns as FrameOfRuns
from penstock.shared.loops.pure.sends import FrameRun as FrameRun
from penstock.shared.loops.pure.sends import KeyNumbers as KeyNumbers
from penstock.shared.loops.pure.sends import Outcome as Outcome
from penstock.shared.messaging.delivered import Copy

INTERFACE: int

def wall_ms() -> int: ...
def crc32(data: bytes | bytearray | memoryview, portable: bool = False) -> int: ...
def check_frame(
    frame: bytes | bytearray | memoryview,
    runs: Sequence[RunOf],
    max_record_bytes: int,
    max_body_bytes: int = ...,
    shape: Shape = ...,
) -> list[int]: ...
def check_properties(frame: bytes | memoryview, starts: list[int], prop_crc: bool) -> None: ...
def properties_of(tags: str | None, keys: str | None, shard: str | None, end: bytes) -> bytes: ...
def join_properties(texts: Sequence[TextColumn]) -> tuple[bytes, bytes] | int: ...
def put_stamped(
    target: memoryview | bytearray,
    frame: bytes | memoryview,
    starts: list[int],
    queue_offsets: list[int],
    position: int,
    stamp: Stamp,
) -> None: ...
def dispatch(
    view: memoryview,
    position: int,
    queues: QueueNumbers,
    levels_ms: tuple[int, ...] = ...,
    keyed: bool = False,
) -> Dispatched: ...
def by_queue(rows: bytes, queues: QueueNumbers) -> Runs: ...
def put_entries(rows: bytes, windows: array[int], area: memoryview) -> bytes: ...
def move_ends(rows: bytes, words: memoryview, step: int) -> None: ...
def link_entries(
    slots: Slots,
    hashes: Ints,
    offsets: Ints,
    stored_ms: Ints,
    first: int,
    begin_ms: int,
) -> tuple[bytes, int]: ...
def move_slots(slots: Slots, hashes: Ints, first: int) -> None: ...
def has_message(socket: zmq.Socket[bytes]) -> bool: ...
def lost_pages() -> int: ...
def touch_pages(data: Buffer) -> None: ...
def drop_parts(socket: zmq.Socket[bytes], most: int) -> int: ...
def record_starts(buffer: bytes | memoryview, position: int, checksum: Checksum) -> list[int]: ...
def messages(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    max_body_bytes: int,
    name: bytes,
) -> tuple[list[Message], int, bool]: ...
def bodies(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    max_body_bytes: int,
    name: bytes,
) -> tuple[list[bytes | Message], int, bool]: ...
def part_starts(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    name: bytes,
) -> tuple[array[int], int, bool]: ...
def batch_records(raw: bytes, common: bytes, prop_crc: bool) -> tuple[bytes, list[int]] | None: ...
def log_ranges(raw: bytes, max_bytes: int, segment_bytes: int) -> Ranges: ...
def gather(found: Sequence[tuple[memoryview, int, bytes]]) -> bytes: ...
def timer_entries(
    raw: bytes, segment: memoryview, base: int, known: int, delivered_ms: int
) -> bytes: ...
def delayed_copies(
    timers: bytes,
    segment: memoryview,
    base: int,
    shape: Shape,
    timed: bool,
    recalled: Collection[bytes],
) -> list[Copy | None]: ...
def record_fields(
    raw: Buffer,
    named: tuple[Buffer, Buffer, Buffer, Buffer, Buffer],
    topics: Buffer,
    ends: Buffer,
    into: Buffer,
) -> int: ...
def copy_bodies(raw: Buffer, at: Buffer, sizes: Buffer, crcs: Buffer, target: Buffer) -> int: ...
def json_lines(
    records: Buffer, start: int, with_body: bool, ascii_only: bool
) -> tuple[bytes, int]: ...
def cells(
    records: Buffer, start: int, with_body: bool, shown_time: Callable[[int], str]
) -> tuple[list[list[Any]], int]: ...
def cut_properties(
    raw: Buffer, at: Buffer, sizes: Buffer, names: tuple[bytes, ...]
) -> Properties: ...
