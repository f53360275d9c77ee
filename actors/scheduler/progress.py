"""How far the scheduler got: penstock/scheduler, and config/delayOffset.json for RocketMQ.

    penstock/scheduler    two slots of 4096 bytes in turn: crc32, length, then JSON
    delayOffset.json      {"dataVersion": ..., "offsetTable": {level: next queue offset}}

A slot is written with one call, after what it counts is on disk. It survives the death of every
process at once; after a power failure there is an older one of this life. The first slot of a life
is synced before anything is sent: the slot of an orderly stop says that nothing is on its way, and
must not come back. The JSON follows every few seconds. If it is not the one that belongs to this
file, another broker has run in between, and the JSON counts.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import (
    OWN_FILE,
    make_directory,
    sync_directory,
    sync_file,
    write_at,
)
from penstock.shared.progress.delay_offsets import delay_offsets
from penstock.shared.store.rocketmq_json import encode_document, load_document, save_document

SLOT_BYTES = 4096
_HEAD_BYTES = 8
# The most rolls to keep; each is some hours long.
MOST_ROLLS = 32


class Roll(msgspec.Struct, frozen=True, array_like=True):
    """Timers stored below the log offset `below` and due after `after_ms` were stored again."""

    below: int
    after_ms: int


class Progress(msgspec.Struct):
    """What the next life goes on with.

    Everything of a level below its offset is delivered; of the wheel queue's records below
    `indexed` all are in the timers' files, and those due up to `delivered_ms` are delivered. Below
    `synced` the files are on disk. Hours up to `split_hour` stand in their minutes. In another boot
    than `boot` the files have what was synced; so it is where that is "", as they are made again,
    and in another run where they are not as they were noted (file_sums.py).
    No copy of anything else lies below the log offset `floor`.
    """

    levels: dict[int, int] = {}
    indexed: int = 0
    synced: int = 0
    delivered_ms: int = -1
    split_hour: int = -1
    floor: int = 0
    # whether every sent copy had its outcome
    clean: bool = False
    boot: str = ""
    run: str = ""
    # the last run whose queues were compared with these offsets
    begun: str = ""
    rolls: list[Roll] = []
    # the roll under way, and the minute up to which it is done
    rolling: Roll | None = None
    rolled_minute: int = -1
    number: int = 0
    # digests of the versions of delayOffset.json that belong to this file
    documents: list[str] = []


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Progress)


class ProgressFile:
    """The file of one store. One process writes it."""

    def __init__(self, path: Path, delay_offsets: Path) -> None:
        self._path, self._delay_offsets = path, delay_offsets
        # The first save opens it, and may find a full disk: a start creates no file.
        self._handle = -1

    def load(self) -> tuple[Progress, bool]:
        """The last life's progress, and whether another broker may have run since.

        Raises StoreDamaged if delayOffset.json cannot be read.
        """
        raw = b""
        with suppress(FileNotFoundError):  # the first life of this store
            raw = read_file(self._path)
        slots = raw[:SLOT_BYTES], raw[SLOT_BYTES:]
        found = [each for slot in slots if (each := _decode(slot)) is not None]
        own = max(found, key=lambda each: each.number, default=None)
        document = load_document(self._delay_offsets, delay_offsets)
        if own is not None and (document is None or self._digest() in own.documents):
            return own, False
        # RocketMQ has run: it counted what it delivered, and nothing is under way
        kept = own or Progress()
        return msgspec.structs.replace(kept, levels=document or {}, clean=True), True

    def save(self, progress: Progress, durable: bool = False) -> None:
        """On return it survives the death of any process; with `durable`, also a power failure.
        Raises OSError."""
        if self._handle < 0:
            self._handle = self._created()
        # Counted once it is written: after a failed save, the next one uses the same slot, and the
        # other slot stays whole.
        number = progress.number + 1
        raw = _encode(msgspec.structs.replace(progress, number=number))
        head = zlib.crc32(raw).to_bytes(4, "big") + len(raw).to_bytes(4, "big")
        slot = (head + raw).ljust(SLOT_BYTES, b"\0")
        assert len(slot) == SLOT_BYTES, "rolls are few"
        write_at(self._handle, slot, number % 2 * SLOT_BYTES)
        if durable:
            sync_file(self._handle)
        progress.number = number
        crash_point("schedule.saved")

    def _created(self) -> int:
        """Create and open it, with a durable name: without it a store counts as another
        broker's."""
        make_directory(self._path.parent)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, OWN_FILE)
        try:
            sync_directory(self._path.parent)
        except OSError:
            os.close(handle)
            raise
        return handle

    def save_document(self, progress: Progress, now_ms: int) -> None:
        """Save both, durably; the JSON's last version is kept as .bak. Raises OSError."""
        raw = encode_document(
            {
                "dataVersion": {"counter": progress.number, "stateVersion": 0, "timestamp": now_ms},
                "offsetTable": {str(level): at for level, at in sorted(progress.levels.items())},
            }
        )
        # a crash leaves one of these two versions, and both belong to this file
        progress.documents = [self._digest(), _digest(raw)]
        self.save(progress, durable=True)
        crash_point("schedule.before_json")
        save_document(self._delay_offsets, raw)

    def _digest(self) -> str:
        try:
            return _digest(read_file(self._delay_offsets))
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def _decode(slot: bytes) -> Progress | None:
    length = int.from_bytes(slot[4:_HEAD_BYTES], "big")
    body = slot[_HEAD_BYTES : _HEAD_BYTES + length]
    if not length or len(body) != length or zlib.crc32(body) != int.from_bytes(slot[:4], "big"):
        return None
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None  # written by another version: then delayOffset.json counts


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=16).hexdigest()
