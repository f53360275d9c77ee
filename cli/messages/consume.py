"""`penstock consume`: messages of a topic on a terminal, in a pipe, or in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options, wait_option
from penstock.cli.options.option_types import COUNT, QUEUE_ID, timeout_option
from penstock.cli.printing.message_output import Print, message_options, printer
from penstock.cli.printing.output import is_file, progress
from penstock.cli.streams import READER_LOOK_S, check_reader, stop_when_unread
from penstock.shared.errors import UnreadableBody

if TYPE_CHECKING:
    from penstock.client.reading.consumer import Consumer

# How long one poll waits for the broker to say where queues end, before it asks again.
_LOOK_S = 0.05


@click.command(
    epilog="""\b
Examples:
  penstock consume orders --store ./store
  penstock consume orders --from latest --follow
  penstock consume orders --from -15m -o json | jq .keys
  penstock consume orders --from 2026-01-02T03:04 --to 2026-01-02T04:00 --max 10
  penstock consume orders -o table
  penstock consume orders --queue 0 --from 100 --to 200 -o plain > bodies
  penstock consume orders --tags 'paid || sent'
  penstock consume orders --template '%p/%o %k: %s\\n' --max 3
  penstock consume orders --select .customer.name -o plain
  penstock consume orders --group billing --follow
  penstock consume orders --sql "amount > 100 AND TAGS = 'paid'"
"""
)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="earliest, latest, an offset, a time, ms since 1970 (a number from 10^12 on), or how long "
    "ago (-15m).",
)
@click.option(
    "--to",
    "end",
    help="Stop before this: an offset, a time and so on, as for --from.  [default: latest]",
)
@click.option("--max", "most", type=COUNT, help="Stop after this many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages instead of stopping.")
@click.option("--group", help="As a member of this consumer group, which shares the topic.")
@click.option("--queue", "queues", type=QUEUE_ID, multiple=True, help="Only this one; repeatable.")
@click.option("--tags", default="", help="Only messages with one of these tags: 'TagA || TagB'.")
@click.option("--sql", default="", help="Only messages that fulfil this SQL92 condition.")
@timeout_option
@wait_option
@broker_options
@message_options
def consume(
    topic: str,
    start: str,
    end: str | None,
    most: int | None,
    follow: bool,
    group: str | None,
    queues: tuple[int, ...],
    tags: str,
    sql: str,
    timeout: float,
    wait: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
    template: str | None,
    path: str | None,
) -> None:
    """Print messages of a topic: the body of each on a line, or more with -o.

    Stops after the last message that was there at the start, unless --follow or --to is given. A
    time without an offset from UTC is this machine's. Exits with 1 when a body cannot be read.

    With --group it shares the topic with the group's other members, begins where the group is (at
    --from where the group is new), and acknowledges each message that it has printed.
    """
    from penstock.client.reading.consumer import Consumer

    if follow and end is not None:
        raise click.UsageError("--follow has no end: leave it out, or --to")
    if group is not None and (end is not None or queues):
        raise click.UsageError("the members of a group divide its queues: no --to, no --queue")
    stop_when_unread()
    show = printer(output, template, path)
    waits = {"timeout_ms": int(timeout * 1000), "wait_for_broker_ms": int(wait * 1000)}
    where = {**broker_of(store, endpoint, "consumers", wait), **waits}
    if group is not None:
        from penstock.cli.messages.consume_group import print_as_member

        _check_readable(print_as_member(where, group, topic, start, most, follow, tags, sql, show))
        return
    asked = {**where, "topic": topic, "queues": queues or None}
    ends = None if end is None else _offsets(asked, end)
    with Consumer(**asked, start=start, follow=follow, tags=tags, sql=sql) as consumer:
        if ends is not None:
            consumer.end_at(ends)
        try:
            unreadable = _print_all(consumer, most, follow, show)
        finally:
            if count := consumer.skipped:
                noun = "message" if count == 1 else "messages"
                click.echo(f"{count} {noun} passed over: expired or lost", err=True)
    _check_readable(unreadable)


def _check_readable(unreadable: int) -> None:
    if unreadable:
        raise UnreadableBody(
            "messages have bodies that cannot be read",
            unreadable,
            "-o json shows the bytes that are stored",
        )


def _offsets(asked: dict[str, Any], end: str) -> dict[int, int] | int:
    """Each queue's offset at `end`, which is where a consumer that starts at `end` would begin."""
    from penstock.client.core.start import parse_start
    from penstock.client.reading.consumer import Consumer
    from penstock.shared.clock import SystemClock

    at = parse_start(end, SystemClock().now_ms())
    if at.offset >= 0:  # a queue may end before this offset, as it may before a time
        return at.offset
    with Consumer(**asked, start=end, follow=False) as there:
        while not there.starts:
            there.poll(_LOOK_S)
        return there.starts


def _print_all(consumer: Consumer, most: int | None, follow: bool, show: Print) -> int:
    """Print messages as they come. Returns how many could not be read."""
    unreadable = shown = total = 0

    def text(done: int, total: int) -> str:
        of = f" of {total:,}" if total else ""
        return f"{shown:,} messages; {done:,}{of} looked at"

    # only when printing to a file: on a screen, messages would get mixed up with the bar
    with progress("reading", wanted=is_file(sys.stdout), text=text) as moved:
        while shown != most:
            batch = consumer.poll(READER_LOOK_S if follow else None)
            if not batch and not follow:
                break
            check_reader()
            for message in batch[: None if most is None else most - shown]:
                try:
                    show(message)
                except UnreadableBody as error:
                    unreadable += 1
                    click.echo(f"{message.message_id}: {error}", err=True)
                shown += 1
            if not follow:
                left = consumer.left
                total = total or left + len(batch)
                moved(total - left, total)
            sys.stdout.flush()
    return unreadable
