"""`penstock spark archive` and `restore`: a store's messages as Parquet, and back into a topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.printing.output import (
    few,
    output_option,
    print_json,
    printable,
    progress,
    shown_bytes,
    time_left,
)
from penstock.cli.spark.session import master_option, spark_session
from penstock.cli.store.changes import EXIT_PROBLEM, directory_argument
from penstock.shared.errors import InvalidArgument
from penstock.shared.names import listed
from penstock.shared.next_steps import quoted

if TYPE_CHECKING:
    from penstock.spark.jobs.archive import ArchiveDone
    from penstock.spark.jobs.archive_check import ArchiveReport


@click.command()
@directory_argument
@click.argument(
    "archive_directory", metavar="ARCHIVE", type=click.Path(path_type=Path), required=False
)
@click.option("--topics", default="", help="Only these, with commas between.")
@click.option("--verify", is_flag=True, help="Add nothing: check the archive, and beside a store.")
@click.option("--accept-gaps", is_flag=True, help="Go on where messages have expired unarchived.")
@click.option("--drop-damaged", is_flag=True, help="Leave out records that cannot be read.")
@master_option
@output_option
@click.pass_context
def archive(
    ctx: click.Context,
    directory: Path,
    archive_directory: Path | None,
    topics: str,
    verify: bool,
    accept_gaps: bool,
    drop_damaged: bool,
    master: str,
    output: str,
) -> None:
    """Add to ARCHIVE what is new in a store, as Parquet by topic and day.

    The store may be running. A run that is killed leaves nothing twice: run it again. --verify
    compares sizes, checksums, offsets, and each message that the store has still; it exits with 1
    where something is wrong. It needs no STORE.

    \b
    Examples:
      penstock spark archive ./store ./archive
      penstock spark archive ./store ./archive --topics orders,payments -o json
      penstock spark archive ./store ./archive --verify
      penstock spark archive ./archive --verify
    """
    from penstock.spark.jobs.archive import archive_store
    from penstock.spark.jobs.archive_check import verify_archive

    store: Path | None = directory
    if archive_directory is None:
        if not verify:
            raise InvalidArgument(
                "no archive is named",
                None,
                f"penstock spark archive {quoted(directory)} ./archive",
            )
        store, archive_directory = None, directory
    with (
        spark_session(master, "archive") as session,
        progress("checking" if verify else "archiving", text=time_left()) as moved,
    ):
        if verify:
            report = verify_archive(session, archive_directory, store, progress=moved)
        else:
            done = archive_store(
                session,
                directory,
                archive_directory,
                topics=listed(topics),
                accept_gaps=accept_gaps,
                drop_damaged=drop_damaged,
                progress=moved,
            )
    if output == "json":
        print_json(report if verify else done)
    elif verify:
        _print_report(report)
    else:
        _print_done(done)
    if verify and not report.ok:
        ctx.exit(EXIT_PROBLEM)


def _print_done(done: ArchiveDone) -> None:
    click.echo(
        f"{done.messages} messages of {done.queues} queues archived, {done.files} files of "
        f"{shown_bytes(done.bytes)}"
        + (f", {done.lost} lost in the store" if done.lost else "")
        + (f", {done.expired} expired before" if done.expired else "")
    )
    if done.archived_to >= 0:
        click.echo(f"the archive has everything below log offset {done.archived_to}")


def _print_report(report: ArchiveReport) -> None:
    verdict = "ok" if report.ok else f"{len(report.findings)} problems"
    click.echo(
        f"{verdict}: {report.messages} messages, {report.files} files of "
        f"{shown_bytes(report.bytes)}, {report.runs} runs; {report.compared} messages are the same "
        f"in the store, {report.lost} were lost there, {report.expired} had expired"
    )
    for line in few(f"{each.kind}: {each.place}: {each.detail}" for each in report.findings):
        click.echo(printable(line))


@click.command()
@directory_argument
@click.argument("archive_directory", metavar="ARCHIVE", type=click.Path(path_type=Path))
@click.option("--topic", required=True, help="The archive's topic.")
@click.option("--into", help="The topic that it goes into; the same name without.")
@click.option("--endpoint", help="The broker's, as workers reach it, in place of the store.")
@click.option("--again", default="", metavar="NAME", help="Once more, under another name.")
@master_option
@output_option
def restore(
    directory: Path,
    archive_directory: Path,
    topic: str,
    into: str | None,
    endpoint: str | None,
    again: str,
    master: str,
    output: str,
) -> None:
    """Put an archive's messages of a topic into a topic of the broker that runs on a store.

    Each is stored once, however often this runs, and queues keep their order. Keys, tags and
    properties stay; offsets, store times and unique keys are new, and the property BORN_TIMESTAMP
    says when a message was first made.

    \b
    Examples:
      penstock spark restore ./store ./archive --topic orders --into orders-2025
      penstock spark restore ./store ./archive --topic orders --endpoint tcp://10.0.0.1:20911
    """
    from penstock.spark.jobs.putting import Target
    from penstock.spark.jobs.restore import restore_topic

    target = Target(into or topic, "" if endpoint else str(directory.absolute()), endpoint or "")
    with (
        spark_session(master, "restore") as session,
        progress("restoring", text=time_left()) as moved,
    ):
        done = restore_topic(
            session, archive_directory, topic, target, write_id=again, progress=moved
        )
    if output == "json":
        print_json(done)
    else:
        click.echo(
            f"{done.messages} messages of {printable(topic)} are in {printable(done.into)}, in "
            f"{done.queues} queues"
            + (f"; {done.lost} were lost before they were archived" if done.lost else "")
        )
