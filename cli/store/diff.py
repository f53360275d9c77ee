"""`penstock store diff`: how two stores differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.printing.output import print_json, print_table, progress, rows_option

if TYPE_CHECKING:
    from penstock.maintenance.diff_stores import Difference

_DIRECTORY = click.Path(path_type=Path)


@click.command(
    epilog="""\b
Examples:
  penstock store diff ./store ./copy
  penstock store diff ./store ./copy --topic orders -o json
  penstock store diff ./store ./imported --content
"""
)
@click.argument("a", type=_DIRECTORY)
@click.argument("b", type=_DIRECTORY)
@click.option("--topic", "topics", multiple=True, help="Only this one; repeatable.")
@click.option(
    "--content",
    is_flag=True,
    help="Compare what senders have said, in its order: not offsets, times, hosts and ids.",
)
@rows_option
def diff(a: Path, b: Path, topics: tuple[str, ...], content: bool, output: str) -> None:
    """Compare the stores A and B: topics, queues, how many messages, the first other one of each
    queue.

    Either is Penstock's or RocketMQ's, running or not; nothing is changed. Two copies of a store,
    and a master and its slave, are the same but for what one does not have yet. A topic that was
    exported and imported is the same with --content. Exits with 0 where nothing differs, with 1
    where something does, with 5 where a store is damaged.
    """
    from penstock.maintenance.diff_stores import Compared, diff_stores
    from penstock.shared.store.directory import StoreDirectory

    compared, found = Compared(), 0
    rows = []
    with (
        StoreDirectory(a) as ours,
        StoreDirectory(b) as theirs,
        progress("comparing") as moved,
    ):
        for each in diff_stores(
            ours, theirs, topics, content=content, compared=compared, progress=moved
        ):
            found += 1
            if output == "json":
                print_json(each._asdict())
            else:
                rows.append((_place(each), each.field, _value(each.a), _value(each.b)))
    if rows:
        print_table(("where", "what", "A", "B"), rows)
    noun = "difference" if found == 1 else "differences"
    looked = f"{compared.topics} topics, {compared.queues} queues, {compared.messages:,} messages"
    click.echo(f"{found or 'no'} {noun}; compared were {looked}", err=True)
    if found:
        raise click.exceptions.Exit(1)


def _place(found: Difference) -> str:
    if found.kind == "topic":
        return found.topic
    queue = f"{found.topic}/{found.queue_id}"
    return queue if found.kind == "queue" else f"{queue} at {found.offset}"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        write, read, perm = value
        return f"{write} to write, {read} to read, {perm}"
    return "not there" if value is None else str(value)
