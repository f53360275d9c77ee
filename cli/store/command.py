"""`penstock store`: look into a store directory and check it. Needs no broker.

Works on Penstock's and on Java RocketMQ's directories, running, stopped or crashed.
`maintenance.verify` and `info` do the work; this file has options and printing. The commands that
change a store are in `changes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.options.index_options import index_options
from penstock.cli.options.option_types import processes_option
from penstock.cli.printing.output import (
    output_option,
    print_json,
    print_table,
    printable,
    progress,
    shown_time,
    time_left,
)
from penstock.cli.printing.suggestions import Group
from penstock.cli.store.changes import directory_argument, rebuild, repair
from penstock.cli.store.diff import diff
from penstock.cli.store.files import export, import_
from penstock.cli.store.inspect import inspect
from penstock.shared.errors import StoreDamaged

EXIT_PROBLEM, EXIT_DAMAGED = 1, StoreDamaged.exit_code

checksum_option = click.option(
    "--checksum",
    type=click.Choice(["both", "body", "record", "none"]),
    default="both",
    show_default=True,
    help="Which to compare; both: of bodies, and of whole records that have one; record: only "
    "these, and a record without one is a problem.",
)


@click.group(cls=Group)
def store() -> None:
    """Look into a store directory, check it, repair it.

    Needs no broker, but for `import`, and works on a Java RocketMQ's directory as well. `rebuild`
    and `repair --apply` change it; the others only look.
    """


store.add_command(rebuild)
store.add_command(repair)
store.add_command(export)
store.add_command(import_)
store.add_command(diff)
store.add_command(inspect)


@store.command()
@directory_argument
@output_option
def info(directory: Path, output: str) -> None:
    """Show files and their sizes, queues, checkpoint and state of a store.

    \b
    Examples:
      penstock store info ./store
      penstock store info ~/store -o json
    """
    from penstock.cli.store.info import gather
    from penstock.shared.store.directory import StoreDirectory

    with progress("looking"), StoreDirectory(directory) as opened:
        found = gather(opened)
    if output == "json":
        print_json(found)
    else:
        _print_info(found)


@store.command()
@directory_argument
@checksum_option
@click.option(
    "--delay-levels",
    metavar="LEVELS",
    help="RocketMQ's messageDelayLevel, where it is not the default.",
)
@index_options
@processes_option("That look at parts of the log and index files side by side.")
@output_option
@click.pass_context
def verify(
    ctx: click.Context,
    directory: Path,
    checksum: str,
    delay_levels: str | None,
    index_slots: int | None,
    index_items: int | None,
    processes: int,
    output: str,
) -> None:
    """Check every record, every queue entry and every index item of a store.

    Exits with 0 when all is well, 5 when the commit log is damaged, 1 for any other problem.

    \b
    Examples:
      penstock store verify ./store
      penstock store verify ./store -o json | jq .problems
      penstock store verify ./store --checksum record
      penstock store verify ./store --delay-levels "1s 10s 2h"
    """
    from penstock.maintenance.verify.check import verify_store
    from penstock.shared.config_sources import load_config
    from penstock.shared.formats.delay_levels import parse_delay_levels
    from penstock.shared.formats.record_crc import Checksum
    from penstock.shared.layout import StorePaths
    from penstock.shared.store.geometry import index_sizes

    config = load_config(flags={"message_delay_level": delay_levels}).config
    asked = index_slots, index_items
    index = index_sizes(StorePaths(directory), *asked) if any(asked) else None
    with progress("checking", text=time_left()) as moved:
        report = verify_store(
            directory,
            progress=moved,
            checksum=Checksum(checksum),
            index=index,
            delay_levels_ms=parse_delay_levels(config.message_delay_level),
            processes=processes,
        )
    if output == "json":
        print_json(report)
    else:
        print_report(report)
    if not report.ok:
        ctx.exit(EXIT_DAMAGED if report.log_damaged else EXIT_PROBLEM)


def print_report(report: Any) -> None:
    """Print a VerifyReport for people."""
    state = "clean" if report.clean else "running, or not stopped in order"
    verdict = "ok" if report.ok else f"{report.problem_count} problems"
    click.echo(
        f"{verdict}: {report.messages} messages, {report.bytes} bytes, {report.segments} segments, "
        f"log [{report.log_start}, {report.log_end}), {state}; {report.seconds} s"
    )
    for note in report.notes:
        click.echo(f"note: {printable(note)}")
    if report.queues:
        print_table(
            ["topic", "queue", "min", "max", "messages"],
            [[q.topic, q.queue_id, q.min_offset, q.max_offset, q.messages] for q in report.queues],
        )
    for problem in report.problems:
        click.echo(
            f"{problem.kind}: {printable(problem.file)}, byte {problem.offset}"
            + ("" if problem.position is None else f", log offset {problem.position}")
            + f": {printable(problem.detail)}"
        )
    if report.problem_count > len(report.problems):
        click.echo(f"and {report.problem_count - len(report.problems)} more")
    for command in report.advice:
        click.echo(f"to mend it, with the broker stopped: {printable(command)}")


def _print_info(found: dict[str, Any]) -> None:
    state = "clean" if found["clean"] else "running, or not stopped in order (abort is there)"
    holder = found["locked_by_pid"]
    click.echo(f"{printable(found['directory'])}: {state}")
    click.echo(f"lock: held by process {holder}" if holder else "lock: free")
    click.echo(f"log: offsets [{found['log_start']}, {found['log_end']})")
    for name in ("sizes", "segments", "queues", "index_files", "consumer_filters"):
        if found[name]:
            click.echo(f"\n{name.replace('_', ' ')}")
            columns = list(found[name][0])
            print_table(columns, [[each[column] for column in columns] for each in found[name]])
    if found["topics"]:
        click.echo("\ntopics")
        print_table(["topic", "queues"], list(found["topics"].items()))
    if found["checkpoint"]:
        click.echo("\ncheckpoint")
        words = found["checkpoint"].items()
        print_table(
            ["word", "value", "time"],
            [
                [name, value, shown_time(value) if name.endswith("_ms") else ""]
                for name, value in words
            ],
        )
    for problem in found["problems"]:
        click.echo(f"{problem['kind']}: {printable(problem['file'])}: {problem['detail']}")
