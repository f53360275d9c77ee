"""`penstock bench bytes`: how often each byte of a message is copied, checksummed and written."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.options.option_types import COUNT, Finite
from penstock.cli.options.settings import set_option
from penstock.cli.printing.output import output_option, print_json, print_table, progress


@click.command(
    "bytes",
    epilog="""\b
Examples:
  penstock bench bytes
  penstock bench bytes --ack written --size 100 --gib 0.5 -o json
""",
)
@click.option("--size", type=click.IntRange(8, 1 << 30), default=1024, show_default=True,
              help="Body bytes.")  # fmt: skip
@click.option("--ack", type=click.Choice(["durable", "written"]), default="durable",
              show_default=True, help="On disk, or safe from every process.")  # fmt: skip
@click.option("--seconds", type=Finite(0.1, 3600), default=3.0, show_default=True,
              help="How long it sends.")  # fmt: skip
@click.option("--gib", type=Finite(0.01, 64), default=1.0, show_default=True,
              help="Of the file that is written twice.")  # fmt: skip
@click.option("--runs", type=COUNT, default=3, show_default=True,
              help="How often that file is written.")  # fmt: skip
@set_option
@output_option
def bytes_(
    size: int,
    ack: str,
    seconds: float,
    gib: float,
    runs: int,
    settings: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """How often each byte of a body is copied, checksummed and written on its way.

    What the code does is counted there; what the kernel does for each process is measured. Then new
    segments are written: one by large calls, one by calls that end anywhere, one by small calls, as
    the committer writes. The last is written again, as a used one would be, and the last two are
    read.
    """
    import tempfile

    import msgspec

    from penstock.bench.loads.target import Where
    from penstock.bench.log.bytes import HANDLED, bench_bytes, measure_segments
    from penstock.bench.reports.machine import measure_machine
    from penstock.bench.reports.report import Shape

    place = Path(tempfile.gettempdir())
    shape, where = Shape(size=size, ack=ack, seconds=seconds), Where(settings=settings)
    with progress("measuring") as moved:
        found = bench_bytes(shape, where, measure_machine(place), moved)
        segments = [measure_segments(place, gib) for _ in range(runs)]
    if output == "json":
        print_json(found)
        for each in segments:
            print_json(each)
        return
    rows = [(step.who, step.does, step.copied, step.checksummed, step.written) for step in HANDLED]
    print_table(("who", "does, to each byte of a body", "copied", "checksummed", "written"), rows)
    click.echo(f"\n{found.messages} messages of {size} bytes, {ack}, for each byte of a body:")
    columns = ("process", "read by calls", "written by calls", "to the disk")
    print_table(
        columns,
        [(r.process, r.read_by_calls, r.written_by_calls, r.to_the_disk) for r in found.rows],
    )
    click.echo(f"\na file of {gib:g} GiB, MB/s:")
    print_table(
        (
            "first write, 4 MiB a call",
            "60,000 bytes",
            "64 KiB",
            "written again",
            "read, 60,000 bytes",
            "64 KiB",
            "load average",
        ),
        [msgspec.structs.astuple(each)[1:] for each in segments],
    )
