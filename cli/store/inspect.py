"""`penstock store inspect`: the records of a store, as rows.

If the log has many parts, as many processes as there are cores walk them and make rows of the
requested records. This process shows the rows part by part, in order. So the output does not depend
on the number of processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli.options.option_types import COUNT, QUEUE_ID, processes_option
from penstock.cli.printing.output import progress, rows_option, time_left
from penstock.cli.store.changes import directory_argument
from penstock.cli.streams import stop_when_unread
from penstock.shared.errors import StoreDamaged

TABLE_ROWS = 20


@click.command()
@directory_argument
@click.option("--topic", help="Only this topic.")
@click.option("--queue", "queue_id", type=QUEUE_ID, help="Only this queue id.")
@click.option("--offset", type=click.IntRange(0, (1 << 62) - 1), help="The first queue offset.")
@click.option("--max", "limit", type=COUNT, help="How many at most.")
@click.option("--body", is_flag=True, help="Show the bodies too.")
@processes_option("That look at parts of the log side by side, where it is long.")
@rows_option
@click.pass_context
def inspect(
    ctx: click.Context,
    directory: Path,
    topic: str | None,
    queue_id: int | None,
    offset: int | None,
    limit: int | None,
    body: bool,
    processes: int,
    output: str,
) -> None:
    """List the records of a store, in log order.

    A table shows the first 20 unless --max is given; other forms show all of them.

    \b
    Examples:
      penstock store inspect ./store --topic orders --body
      penstock store inspect ./store --topic orders --queue 0 --offset 1000 --max 5
      penstock store inspect ./store -o json | jq -r .message_id
    """
    from penstock.cli.store.listing import Chosen, Shown
    from penstock.cli.store.log_parts import Selection
    from penstock.shared.process.malloc_tuning import keep_large_blocks
    from penstock.shared.store.directory import StoreDirectory

    if offset is not None and (topic is None or queue_id is None):
        raise click.UsageError("--offset counts within one queue: give --topic and --queue too")
    stop_when_unread()
    keep_large_blocks()
    shown = Shown(output, with_body=body, most=limit or TABLE_ROWS)
    # no bar while rows appear on a terminal: they show the progress themselves
    wanted = shown.waits or not sys.stdout.isatty()
    with (
        StoreDirectory(directory) as opened,
        progress("inspecting", wanted=wanted, text=time_left()) as moved,
    ):
        chosen = Chosen(opened, limit, TABLE_ROWS if shown.waits else None)
        selection = Selection(topic, queue_id, offset or 0)
        for rows in chosen.rows(selection, shown.form, moved, processes):
            shown.take(rows)
        unclean = opened.is_unclean
    shown.finish()
    chosen.tell()
    if chosen.damaged and not unclean:
        ctx.exit(StoreDamaged.exit_code)
