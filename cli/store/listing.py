"""Where the rows of `store inspect` go, and what is said besides: what was found but not shown.

log_parts.Listing -> Chosen -> Shown -> standard output
                        \\-> damage, and how many more there are, on standard error
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import click

from penstock.cli.printing.output import MOST_LISTED, print_table, shortened, table_form
from penstock.cli.store.log_parts import Listing, Selection, Task, start_of
from penstock.cli.store.record_parts import COLUMNS, Form, cells
from penstock.shared.store.directory import StoreDirectory


class Chosen:
    """The records that are shown: at most `limit`, or the first `upto` while all others are
    counted. Damage is reported where it is found."""

    def __init__(self, store: StoreDirectory, limit: int | None, upto: int | None) -> None:
        self._store = store
        self._limit, self._upto = limit, upto
        self._more = self.damaged = 0

    def rows(
        self,
        selection: Selection,
        form: Form,
        moved: Callable[[int, int], None],
        processes: int,
    ) -> Iterator[memoryview]:
        """The rows of the chosen records, some at a time."""
        store, most = self._store, self._limit or self._upto or sys.maxsize
        root, start = str(store.paths.root.absolute()), start_of(store, selection)
        whole = Task(root, start, store.files_end, selection, form, most, self._limit is not None)
        with closing(Listing(store, whole, processes).parts()) as parts:
            for part in parts:
                moved(part.end - store.log_start, store.files_end - store.log_start)
                for each in part.damage:
                    self._tell_damage(*each)
                shown = min(part.count, most)
                most -= shown
                self._more += part.count - shown
                if shown:
                    yield part.rows

    def _tell_damage(self, position: int, size: int, reason: str) -> None:
        self.damaged += 1
        if self.damaged <= MOST_LISTED:
            segment = self._store.segment_of(position)
            click.echo(
                f"damaged: {size} bytes at log offset {position} ({segment.path}, byte "
                f"{position - segment.base}): {reason}",
                err=True,
            )

    def tell(self) -> None:
        """Print what was found but not shown."""
        if self.damaged > MOST_LISTED:
            click.echo(f"damaged: {self.damaged - MOST_LISTED} more", err=True)
        if self._more:
            click.echo(f"{self._more} more; --max N shows more of them, -o json all", err=True)


class Shown:
    """Prints rows on standard output in the requested form; of a table at most `most`."""

    def __init__(self, output: str, *, with_body: bool, most: int) -> None:
        out = sys.stdout
        self.form = Form(table_form() or output, with_body, out.encoding, out.isatty())
        # the rows of a table wait for the last one, because its widths depend on all
        self.waits = self.form.name == "table"
        self._columns = [*COLUMNS, "body"] if with_body else COLUMNS
        self._table: list[list[Any]] = []
        self._most = most
        if table_form():
            print_table(self._columns, [])

    def take(self, rows: memoryview) -> None:
        """Take what `rows_of` has made of the next records."""
        out = sys.stdout
        if not self.waits:
            if out.encoding.lower() == "utf-8":
                out.flush()
                out.buffer.write(rows)  # as bytes: decoding and encoding them would copy them
            else:
                out.write(str(rows, "utf-8"))
            out.flush()
            return
        for each in cells(rows)[: self._most - len(self._table)]:
            if self.form.with_body:
                each[-1] = shortened(each[-1])
            self._table.append(each)

    def finish(self) -> None:
        if self.waits:
            print_table(self._columns, self._table)
