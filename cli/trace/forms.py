"""What `penstock trace` asks of a finder of records, and what it learns about a record's place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penstock.shared.formats.record import Record

# The most records of one key in one topic: more than a message has copies there.
MOST = 1000


class Finder(Protocol):
    """Finds records."""

    def by_key(self, topic: str, key: str) -> list[Record]: ...

    def by_id(self, message_id: str) -> Record | None: ...

    def topics(self) -> set[str]: ...

    def marks_after(self, half: Record) -> Iterator[Record]:
        """The op records that may be about a half message, oldest first."""

    def close(self) -> None: ...


class Place(NamedTuple):
    """Where a record is. `disk` is how far it got: written, committed, flushed; None: unknown."""

    file: str | None = None
    file_offset: int | None = None
    disk: str | None = None
    readable: bool | None = None
    due_ms: int | None = None
