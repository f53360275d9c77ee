"""Which records `store inspect` shows, and where their rows go: both ends of what makes the rows.

steps of the log -> Chosen -> parts -> `record_parts.rows_of`, anywhere -> Shown -> stdout
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
import msgspec

from penstock.cli.printing.output import (
    MOST_LISTED,
    print_table,
    shortened,
    table_form,
)
from penstock.cli.store.record_parts import COLUMNS, Part, Place, Records, cells
from penstock.shared.formats.record_check import Kind
from penstock.shared.log.scan import Step
from penstock.shared.store.directory import StoreDirectory

# How many bytes of records become rows at a time. Where few are asked for, what was found in a
# stretch of the log is enough: nobody waits until there are many.
PART_BYTES, STRETCH_BYTES = 1 << 20, 32 << 20


class _Copied:
    """Records that are shown, one after the other."""

    def __init__(self) -> None:
        self._records, self.held = bytearray(), 0

    def add(self, position: int, size: int, record: memoryview) -> None:
        self._records += record
        self.held += size

    def take(self) -> Records:
        """What was added since the last time."""
        taken, self._records, self.held = self._records, bytearray(), 0
        return Records(memoryview(taken), [])


class _InPlace:
    """The same where they stand in the files of the log: whoever makes their rows reads them there,
    and no pipe has to take them."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._bases = {segment.base for segment in store.segments}
        self._spans: list[tuple[int, int]] = []
        self._start = self._end = self.held = 0

    def add(self, position: int, size: int, record: memoryview) -> None:
        if position != self._end or position in self._bases:
            self._close_span(position)
        self._end = position + size
        self.held += size

    def _close_span(self, position: int) -> None:
        if self._start < self._end:
            self._spans.append((self._start, self._end))
        self._start = self._end = position

    def take(self) -> Records:
        self._close_span(self._end)
        spans, self._spans, self.held = self._spans, [], 0
        places = []
        for start, end in spans:
            segment = self._store.segment_of(start)
            places.append(Place(str(segment.path.absolute()), start - segment.base, end - start))
        return Records(memoryview(b""), places)


class Chosen:
    """The records that are shown: `limit` of them at most, or the first `upto` while all others are
    counted. Damage is told of where it is met. Where they stand together in the log, `in_place`,
    they are not copied."""

    def __init__(
        self, store: StoreDirectory, limit: int | None, upto: int | None, *, in_place: bool
    ) -> None:
        self._store = store
        self._held = _InPlace(store) if in_place else _Copied()
        self._limit = limit
        self._upto = limit or upto
        self._more = self.damaged = 0

    def records(
        self, steps: Iterable[Step], moved: Callable[[int, int], None]
    ) -> Iterator[Records]:
        """Some at a time."""
        start = self._store.log_start
        total = self._store.files_end - start
        most = sys.maxsize if self._upto is None else self._upto
        held, since, shown = self._held, start, 0
        for position, found, size, record, reason in steps:
            if found is Kind.RECORD:
                if shown < most:
                    shown += 1
                    held.add(position, size, record)
                else:
                    self._more += 1
            elif found is Kind.DAMAGED:
                self._damage(position, size, reason)
            if shown == self._limit:
                break
            if held.held >= PART_BYTES or position - since >= STRETCH_BYTES:
                moved(position - start, total)
                since = position
                if held.held:
                    yield held.take()
        if held.held:
            yield held.take()

    def _damage(self, position: int, size: int, reason: str) -> None:
        self.damaged += 1
        if self.damaged <= MOST_LISTED:
            segment = self._store.segment_of(position)
            click.echo(
                f"damaged: {size} bytes at log offset {position} ({segment.path}, byte "
                f"{position - segment.base}): {reason}",
                err=True,
            )

    def tell(self) -> None:
        """What was found and is not shown."""
        if self.damaged > MOST_LISTED:
            click.echo(f"damaged: {self.damaged - MOST_LISTED} more", err=True)
        if self._more:
            click.echo(f"{self._more} more; --max N shows more of them, -o json all", err=True)


class Shown:
    """Rows on standard output, in the form that was asked for."""

    def __init__(self, output: str, *, with_body: bool) -> None:
        self._form = table_form() or output
        # the rows of a table wait for the last one, for its widths follow from all
        self.waits = self._form == "table"
        self._with_body = with_body
        self._columns = [*COLUMNS, "body"] if with_body else COLUMNS
        self._table: list[list[Any]] = []
        if table_form():
            print_table(self._columns, [])

    def part(self, records: Records) -> bytes:
        out = sys.stdout
        return msgspec.msgpack.encode(
            Part(records, self._form, self._with_body, out.encoding, out.isatty())
        )

    def take(self, rows: bytes) -> None:
        """What `rows_of` has made of the next part."""
        if not self.waits:
            sys.stdout.write(rows.decode())
            return
        for each in cells(rows):
            if self._with_body:
                each[-1] = shortened(each[-1])
            self._table.append(each)

    def finish(self) -> None:
        if self.waits:
            print_table(self._columns, self._table)
