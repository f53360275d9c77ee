"""Lays rows out as lines of text for a given width. Pure.

What people copy is never cut or folded. If a row is wider than the terminal, its widest cells go
below it, each on a line of its own with its column's name. A cell that is still too wide is left
whole: the terminal wraps it so that it can be copied.

    queue  offset  stored                    tags
        0      12  2026-11-21T10:08:10.632Z  new
        message id  C0A8070900002A9F00000000000000AF
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_GAP = "  "
_INDENT = " " * 4
# From this many rows on, the longest quarter of a column's cells are exceptions that do not decide
# its width, unless the column is narrow anyway.
_MANY = 8
_NARROW = 20


def printable(text: str) -> str:
    """The text with control characters escaped, because data must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cells_of(row: Iterable[object]) -> list[str]:
    return [printable("" if cell is None else str(cell)) for cell in row]


class Layout:
    """Where the columns of a table go. `widths` are the least, those of the cells."""

    def __init__(
        self, columns: Sequence[str], widths: Sequence[int], numeric: set[int], room: int | None
    ) -> None:
        self._columns = columns
        self._numeric = numeric
        self._tight = room is not None
        self._widths = [max(_width(c), w) for c, w in zip(columns, widths, strict=True)]
        self._beside = list(range(len(columns)))
        while room is not None and len(self._beside) > 1 and self._total() > room:
            self._beside.remove(max(self._beside[1:], key=lambda at: self._widths[at]))
        self._below = [at for at in range(len(columns)) if at not in self._beside]

    @property
    def is_split(self) -> bool:
        """Whether columns go below."""
        return bool(self._below)

    def _total(self) -> int:
        return sum(self._widths[at] + len(_GAP) for at in self._beside) - len(_GAP)

    def head(self) -> str:
        return self._line(self._columns)

    def row(self, cells: Sequence[str]) -> Iterator[str]:
        """The lines of a row. A cell that is wider than its column goes below it too."""
        below = [at for at in self._beside if self._tight and _width(cells[at]) > self._widths[at]]
        yield self._line(["" if at in below else cell for at, cell in enumerate(cells)])
        below = sorted(self._below + below)
        label = max((_width(self._columns[at]) for at in below), default=0)
        for at in below:
            if cells[at]:
                yield f"{_INDENT}{_padded(self._columns[at], label)}{_GAP}{cells[at]}"

    def _line(self, cells: Sequence[str]) -> str:
        padded = (_padded(cells[at], self._widths[at], at in self._numeric) for at in self._beside)
        return _GAP.join(padded).rstrip()


def lay_out(columns: Sequence[str], rows: Iterable[Sequence[object]], room: int | None) -> Layout:
    """The layout that fits these rows, with numbers aligned right."""
    shown = list(rows)
    by_column = [[row[at] for row in shown] for at in range(len(columns))]
    numeric = {
        at
        for at, cells in enumerate(by_column)
        if shown and all(isinstance(cell, int | float | None) for cell in cells)
    }
    by_size = [sorted(_width(text) for text in cells_of(cells)) for cells in by_column]
    layout = Layout(columns, [max(sizes, default=0) for sizes in by_size], numeric, room)
    if layout.is_split and len(shown) >= _MANY:
        # so that a few rows with long cells do not cost all others a line
        usual = [
            sizes[-1] if sizes[-1] <= _NARROW else sizes[(len(sizes) - 1) * 3 // 4]
            for sizes in by_size
        ]
        layout = Layout(columns, usual, numeric, room)
    return layout


def _padded(text: str, width: int, right: bool = False) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    """How many columns of a terminal the text takes: some characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
