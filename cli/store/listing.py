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
from penstock.cli.store.record_parts import COLUMNS, Part, cells
from penstock.shared.formats.record_check import Kind
from penstock.shared.log.scan import Step
from penstock.shared.store.directory import StoreDirectory

# How many bytes of records become rows at a time. Where few are asked for, what was found in a
# stretch of the log is enough: nobody waits until there are many.
PART_BYTES, STRETCH_BYTES = 1 << 20, 32 << 20


class Chosen:
    """The records that are shown: `limit` of them at most, or the first `upto` while all others are
    counted. Damage is told of where it is met."""

    def __init__(self, store: StoreDirectory, limit: int | None, upto: int | None) -> None:
        self._store = store
        self._limit = limit
        self._upto = limit or upto
        self._more = self.damaged = 0

    def records(
        self, steps: Iterable[Step], moved: Callable[[int, int], None]
    ) -> Iterator[bytearray]:
        """Records one after the other, some at a time."""
        start = self._store.log_start
        total = self._store.files_end - start
        most = sys.maxsize if self._upto is None else self._upto
        records, since, shown = bytearray(), start, 0
        for position, found, size, record, reason in steps:
            if found is Kind.RECORD:
                if shown < most:
                    shown += 1
                    records += record
                else:
                    self._more += 1
            elif found is Kind.DAMAGED:
                self._damage(position, size, reason)
            if shown == self._limit:
                break
            if len(records) >= PART_BYTES or position - since >= STRETCH_BYTES:
                moved(position - start, total)
                if records:
                    yield records
                records, since = bytearray(), position
        if records:
            yield records

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

    def part(self, records: bytearray) -> bytes:
        out = sys.stdout
        return msgspec.msgpack.encode(
            Part(memoryview(records), self._form, self._with_body, out.encoding, out.isatty())
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
