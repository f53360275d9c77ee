"""The commands of `penstock store` that change a store on which no broker runs: rebuild and repair.

`maintenance.rebuild` and `maintenance.repair` do the work; this file has options and printing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.option_types import Command, processes_option
from penstock.cli.options.settings import config_option, set_option
from penstock.cli.printing.output import (
    few,
    output_option,
    print_json,
    printable,
    progress,
    time_left,
)

if TYPE_CHECKING:
    from penstock.maintenance.damage_walk import RangeRepair
    from penstock.maintenance.rebuild import Rebuilt
    from penstock.maintenance.repair import Repair
    from penstock.shared.config import Config

EXIT_PROBLEM = 1

directory_argument = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)

_REBUILT = (
    click.option("--queues", is_flag=True, help="The consume queues; both without any of the two."),
    click.option("--index", is_flag=True, help="The index files."),
    config_option,
    set_option,
)

_processes = processes_option("That walk parts of the log side by side.")


def rebuild_options(command: Command) -> Command:
    """The options that say what is rebuilt, and with which settings."""
    for option in reversed(_REBUILT):
        command = option(command)
    return command


def offline_config(
    file: Path | None, settings: tuple[tuple[str, str], ...], directory: Path
) -> Config:
    """The settings of the store's broker, except the index's size, because that is rebuilt."""
    from penstock.shared.config_sources import load_config
    from penstock.shared.store.geometry import settled_but_index

    flags: dict[str, object] = {**dict(settings), "store_path_root_dir": str(directory)}
    return load_config(file, flags, os.environ, settled_but_index).config


@click.command()
@directory_argument
@rebuild_options
@_processes
@output_option
def rebuild(
    directory: Path,
    queues: bool,
    index: bool,
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    processes: int,
    output: str,
) -> None:
    """Rebuild consume queues and index from the log.

    They are made next to the old ones and swapped in: killed at any time, the store has either the
    old or the new. The log is only read. Files get the sizes that the store has; the index may get
    others, with --set max_hash_slot_num=N and --set max_index_num=N.

    \b
    Examples:
      penstock store rebuild ./store
      penstock store rebuild ./store --queues -o json
      penstock store rebuild ./store --index --set max_index_num=1000000
    """
    from penstock.maintenance.rebuild import rebuild_store
    from penstock.maintenance.side_by_side import run_side_by_side
    from penstock.shared.clock import SystemClock
    from penstock.shared.store.lock import stopped_store

    config = offline_config(file, settings, directory)
    both = not queues and not index
    with (
        stopped_store(directory) as (paths, _),
        progress("rebuilding", text=time_left()) as moved,
    ):
        done = rebuild_store(
            paths,
            config,
            SystemClock(),
            queues=queues or both,
            index=index or both,
            progress=moved,
            run=partial(run_side_by_side, processes=processes),
        )
    if output == "json":
        print_json(done)
    else:
        print_rebuilt(done, directory, queues=queues or both, index=index or both)


def print_rebuilt(done: Rebuilt, directory: Path, *, queues: bool, index: bool) -> None:
    """Print what a rebuild of the store in `directory` has made, for people."""
    from penstock.shared.next_steps import repair as run_repair

    if queues:
        click.echo(
            f"{done.messages} messages, {done.entries} entries in {done.queues} queues"
            + (f", {done.lost} slots of lost messages" if done.lost else "")
            + (f", {done.kept_queues} queues without messages kept" if done.kept_queues else "")
        )
        for line in few(
            f"misplaced: the record at log offset {at} names another's place in a queue"
            for at in done.misplaced
        ):
            click.echo(line)
        if done.misplaced:
            click.echo(f"a rebuild cannot mend that; run: {printable(run_repair(directory))}")
    if index:
        click.echo(f"{done.keys} keys in {done.index_files} index files")
    click.echo(f"{done.seconds} s")


@click.command()
@directory_argument
@click.option("--apply", is_flag=True, help="Do it; without this nothing is changed.")
@config_option
@set_option
@_processes
@output_option
@click.pass_context
def repair(
    ctx: click.Context,
    directory: Path,
    apply: bool,
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    processes: int,
    output: str,
) -> None:
    """Make a damaged store one that brokers run on, ours and RocketMQ's.

    Without --apply it shows what it would do, and exits with 1 when there is something to do. A
    damaged range of the log gets records of the same length: one for each message that is lost, in
    its queue, with the property PENSTOCK_LOST. What stood there, and files that do not belong
    where they are, go to DIRECTORY/penstock/quarantine/. Queues and index are rebuilt.

    \b
    Examples:
      penstock store repair ./store
      penstock store repair ./store --apply
    """
    from penstock.maintenance.repair import plan_repair, repair_store
    from penstock.shared.clock import SystemClock
    from penstock.shared.store.lock import stopped_store

    config = offline_config(file, settings, directory)
    with (
        stopped_store(directory) as (paths, last_run),
        progress("looking", text=time_left()) as moved,
    ):
        if apply:
            done = repair_store(paths, config, SystemClock(), last_run, moved, processes)
        else:
            done = plan_repair(paths, config, moved, processes)
    if output == "json":
        print_json(done)
    else:
        _print_repair(done)
    if done.needed and not apply:
        ctx.exit(EXIT_PROBLEM)


def _range_lines(each: RangeRepair) -> Iterator[str]:
    """A damaged range and what happens to it, in a few lines."""
    yield printable(f"damaged: {each.damage}")
    yield from few(
        f"  lost: {lost.topic}, queue {lost.queue_id}, offset {lost.queue_offset}"
        for lost in each.lost
    )
    if not each.lost:
        yield "  no queue misses a message of it"
    yield printable(f"  its bytes: {each.kept_in}")


def _print_repair(done: Repair) -> None:
    for line in few(done.files):
        click.echo(printable(line))
    for line in few("\n".join(_range_lines(each)) for each in done.ranges):
        click.echo(line)
    if not done.applied:
        click.echo("nothing was changed; --apply does it" if done.needed else "nothing to repair")
    elif done.rebuilt is not None:
        count = sum(len(each.lost) for each in done.ranges)
        click.echo(
            f"repaired: {len(done.ranges)} ranges, {count} messages lost; queues and index made "
            f"anew from {done.rebuilt.messages} records"
        )
