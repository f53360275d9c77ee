"""Finds messages by key, newest first, or by the id that says where they are. Reads, never writes.

RocketMQ's rules: go through the files from the newest to the oldest, and stop after the first that
began before the wanted time; look into a file only if its times and the wanted ones overlap; there,
follow the chain of the key's slot. Times count to the second, as in items. RocketMQ returns
whatever has the same hash. Here only records that really have this topic and key count, each once,
so others do not use up the limit.

The caller says where records are read: in a running broker's log, or in a directory. A look-up is a
generator that pauses, because a chain may be long while others wait.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import InvalidArgument, MessageNotFound
from penstock.shared.formats.index_chains import key_hashes
from penstock.shared.formats.index_layout import ITEM, Geometry
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.formats.record_check import LogAt, record_at
from penstock.shared.formats.record_layout import store_host
from penstock.shared.formats.record_outline import outline, record_keys
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile

# An answer has about this many bytes at most, but always one record.
MAX_ANSWER_BYTES = 8 << 20
# A key is part of the properties, whose length is an i16 in RocketMQ.
MAX_KEY_BYTES = 32_767
# Items that are examined between two pauses.
_STRIDE = 512


class KeyQuery(NamedTuple):
    """The query: the newest `max_num` messages of a topic with this key.

    Times are store times in ms, both inclusive; with `unique` only UNIQ_KEY counts, not KEYS.
    """

    topic: str
    key: str
    max_num: int
    begin_ms: int
    end_ms: int
    unique: bool

    def check(self) -> KeyQuery:
        """Returns itself, or raises InvalidArgument. The topic is checked elsewhere."""
        if not 0 < len(self.key.encode()) <= MAX_KEY_BYTES:
            what = f"the key is empty, or longer than {MAX_KEY_BYTES} bytes"
            raise InvalidArgument(what, f"{len(self.key.encode())} bytes", "name a key")
        if self.max_num < 1:
            raise InvalidArgument(
                "fewer than one message is asked for", self.max_num, "ask for at least 1"
            )
        if self.begin_ms > self.end_ms:
            raise InvalidArgument(
                "the time range ends before it begins",
                f"{self.begin_ms} to {self.end_ms}",
                "exchange the two",
            )
        return self


class IndexView:
    """The files of an index directory, mapped for reading and kept.

    A file that grows needs no second mapping: it has its full length from the beginning.
    """

    def __init__(self, directory: Path, geometry: Geometry) -> None:
        self._directory = directory
        self._geometry = geometry
        self._open: dict[str, IndexFile] = {}

    def files(self) -> list[IndexFile]:
        """The present files, newest first. Raises StoreDamaged for one of another geometry."""
        found = {path.name: path for path in index_files(self._directory)}
        for name in found.keys() - self._open.keys():
            try:
                self._open[name] = IndexFile(found[name], self._geometry)
            except FileNotFoundError:
                continue  # it has expired since it was listed
        return [self._open[name] for name in sorted(found, reverse=True) if name in self._open]

    def release_deleted(self) -> None:
        """Close deleted files. Not during a look-up, which may be reading one."""
        for name in self._open.keys() - {path.name for path in index_files(self._directory)}:
            self._open.pop(name).close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def look_up(
    files: list[IndexFile], wanted: KeyQuery, log_at: LogAt
) -> Generator[None, None, list[bytes]]:
    """The newest records with this key, in log order. Pauses now and then.

    `files` are newest first, and stay open until the look-up ends. What expires meanwhile is left
    out.
    """
    topic, key = wanted.topic.encode(), wanted.key.encode()
    code = int(key_hashes([topic + b"#" + key])[0])
    # offset -> size: many look-ups may be under way, and only one that ends should take memory
    found: dict[int, int] = {}
    size = 0
    for offset in _candidates(files, code, wanted.begin_ms, wanted.end_ms):
        if offset is None:
            yield
        elif offset not in found:  # a record may have a key twice, and RocketMQ may repeat it
            record = record_at(log_at, offset)
            if record is not None and _has_key(record, topic, key, wanted.unique):
                size += len(record)
                # newest first, so only older records are left out of the answer
                if found and size > MAX_ANSWER_BYTES:
                    break
                found[offset] = len(record)
                if len(found) >= wanted.max_num:
                    break
            yield
    records = (record_at(log_at, offset) for offset in sorted(found))
    return [bytes(record) for record in records if record is not None]  # expired meanwhile


def find_by_id(message_id: str, log_at: LogAt) -> memoryview:
    """The record that an offsetMsgId names. Raises InvalidArgument and MessageNotFound.

    The id has the address of the broker that stored the record, and a log offset. In another
    broker's store another record may begin there, so both are compared.
    """
    host, offset = parse_message_id(message_id)
    record = record_at(log_at, offset)
    if record is None or store_host(record) != host:
        raise MessageNotFound(
            "no message in the store has this id",
            message_id,
            "it may have expired, or another broker's store may have it",
        )
    return record


def _candidates(
    files: list[IndexFile], code: int, begin_ms: int, end_ms: int
) -> Iterator[int | None]:
    """Log offsets of items with this hash and time, newest first; None where a pause fits."""
    for file in files:
        header = file.header
        # the times of a file without items are copied from the file before it
        if header.next_item > 1 and (
            begin_ms <= header.end_timestamp_ms and end_ms >= header.begin_timestamp_ms
        ):
            yield from _chain(file, code, begin_ms, end_ms)
        if header.begin_timestamp_ms < begin_ms:
            return
        yield None


def _chain(file: IndexFile, code: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
    """Log offsets of one slot's items that fit, newest first; None where a pause is possible.

    A chain leads only to older items. A link that does not is damage, and ends the chain: the walk
    might never end. So does a time before the range: what follows is older still.
    """
    geometry = file.geometry
    first_ms = file.header.begin_timestamp_ms
    # an item is complete before its slot points to it, whether the header counts it yet or not
    number = int(file.slots[code % geometry.slots])
    seen = 0
    while 0 < number < geometry.items:
        found, offset, seconds, previous = ITEM.unpack_from(file.view, geometry.item_at(number))
        stored_ms = first_ms + 1000 * seconds
        if seconds < 0:
            return
        if found == code and begin_ms <= stored_ms <= end_ms:
            yield offset
        if stored_ms < begin_ms or previous >= number:
            return
        number = previous
        seen += 1
        if seen % _STRIDE == 0:
            yield None


def _has_key(record: memoryview, topic: bytes, key: bytes, unique: bool) -> bool:
    fields = outline(record)
    if fields.topic != topic:
        return False
    unique_key, words = record_keys(fields)
    return key == unique_key or (not unique and key in words.split(b" "))
