"""How fast are messages written to a Parquet file, compared with Arrow writing rows from memory?

`penstock store export` takes turns with a process that has the first rows of the same export in
memory, and writes them over and over, as the same kind of file, until it is as large. Both sync it.
The export can then be sent to another broker: the count and checksum of what that has stored must
be those of the first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

import penstock.client.arrow  # noqa: F401 - its one sentence says what is missing
from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.stack import running_stack
from penstock.bench.stores.rebuild import fill
from penstock.shared.errors import StoreDamaged, StoreUnavailable

MEMORY_ROWS = 1 << 19


class Export(msgspec.Struct, frozen=True, tag="export", tag_field="kind"):
    """Medians. MB are 10**6 bytes of bodies; `import_s` is 0 if nothing was sent."""

    messages: int
    body_bytes: int
    runs: int
    seconds: float
    mb_per_s: float
    memory_mb_per_s: float
    to_memory: float
    import_s: float
    body_sha256: str


class _Said(msgspec.Struct, frozen=True):
    """The fields that are used here of what both commands print with -o json."""

    rows: int
    body_sha256: str
    seconds: float


def bench_export(
    store: Path | None, gib: float, size: int, runs: int, sends: bool, moved: Moved
) -> Export:
    """Measure on `store`, which is made if it does not exist, or on a temporary one.

    Raises StoreDamaged if what comes back differs, StoreUnavailable if a command fails.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-export-", dir=store.parent if store else None))
    root, steps = store or place / "store", 2 * runs + sends
    try:
        if not (root / "commitlog").is_dir():
            fill(root, int(gib * (1 << 30)), size)
        file = place / "all.parquet"
        exports, memory_s = list[_Said](), list[float]()
        for run in range(runs):
            file.unlink(missing_ok=True)
            exports.append(_exported(root, file))
            moved(2 * run + 1, steps)
            memory_s.append(_from_memory(file, place / "memory.parquet"))
            moved(2 * run + 2, steps)
        import_s = _sent(file, place / "other", exports[-1]) if sends else 0.0
        moved(steps, steps)
    finally:
        shutil.rmtree(place)
    seconds, rows = median(each.seconds for each in exports), exports[-1].rows
    rate, memory_rate = (rows * size / took / 1e6 for took in (seconds, median(memory_s)))
    return Export(
        rows,
        size,
        runs,
        round(seconds, 2),
        round(rate, 1),
        round(memory_rate, 1),
        round(rate / memory_rate, 3),
        round(import_s, 2),
        exports[-1].body_sha256,
    )


def _exported(source: Path, file: Path) -> _Said:
    return _command("export", str(source), "--out", str(file))


def _command(*words: str) -> _Said:
    command = [sys.executable, "-m", "penstock.cli.main", "store", *words, "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise StoreUnavailable("a command of this measurement has failed", command)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Said)


def _from_memory(like: Path, file: Path) -> float:
    """Seconds that Arrow takes to write as many rows as the file `like` has, from memory."""
    import pyarrow as pa
    import pyarrow.parquet

    from penstock.dataframes.export import FORMS

    with pyarrow.parquet.ParquetFile(like) as found:
        left, batches = found.metadata.num_rows, []
        for batch in found.iter_batches():
            batches.append(batch)
            if sum(each.num_rows for each in batches) >= MEMORY_ROWS:
                break
        schema = found.schema_arrow
    began = time.monotonic()
    with open(file, "xb") as written, pa.OSFile(str(file), "wb") as target:
        # columns with dictionaries and statistics, and row groups, as in an export
        with FORMS["parquet"](target, schema) as sink:
            while left > 0:
                for batch in batches:
                    part = batch.slice(0, max(0, left))
                    sink.write_batch(part)
                    left -= part.num_rows
        os.fsync(written.fileno())
    took = time.monotonic() - began
    file.unlink()
    return took


def _sent(file: Path, root: Path, exported: _Said) -> float:
    """Seconds until another broker has acknowledged all messages of the file."""
    with running_stack(root, flags={"flush_disk_type": "async"}):
        sent = _command("import", str(file), "--store", str(root))
    again = file.with_name("again.parquet")
    stored = _exported(root, again)
    again.unlink()
    for each in (sent, stored):
        if (each.rows, each.body_sha256) != (exported.rows, exported.body_sha256):
            raise StoreDamaged("what was imported differs from what was exported", root)
    return sent.seconds
