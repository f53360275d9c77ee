"""`penstock consume`: messages of a topic on a terminal, in a pipe, or in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.endpoints import broker_of, broker_options, wait_option
from penstock.cli.option_types import COUNT, QUEUE_ID, timeout_option
from penstock.cli.output import (
    is_file,
    print_head,
    print_json,
    print_rows,
    progress,
    room,
    shortened,
    shown_time,
)
from penstock.cli.streams import stop_when_unread
from penstock.cli.table import Layout, printable
from penstock.shared.errors import UnreadableBody

if TYPE_CHECKING:
    from penstock.client.consumer import Consumer
    from penstock.client.core.message import Message

Print = Callable[["Message"], None]

# The table is printed as messages come, so its widths cannot follow from them: these are usual.
_COLUMNS = {
    **{"queue": 5, "offset": 8, "stored": 24, "tags": 8},
    **{"keys": 8, "message id": 32, "body": 60},
}
# How long one poll waits for the broker to say where queues end; then it is asked again.
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
  penstock consume orders --group billing --follow
  penstock consume orders --sql "amount > 100 AND TAGS = 'paid'"
"""
)
@click.argument("topic")
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
@click.option("--follow", is_flag=True, help="Wait for new messages instead of stopping.")
@click.option("--group", help="As a member of this consumer group, which shares the topic.")
@click.option("--queue", "queues", type=QUEUE_ID, multiple=True, help="Only this one; repeatable.")
@click.option("--tags", default="", help="Only messages with one of these tags: 'TagA || TagB'.")
@click.option("--sql", default="", help="Only messages that fulfil this SQL92 condition.")
@timeout_option
@wait_option
@broker_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["body", "plain", "table", "json"]),
    default="body",
    show_default=True,
    help="body: each on a line, made printable on a terminal; plain: the same, but always byte by "
    "byte; table: what else there is of each, and the beginning of its body; json: one object per "
    "line.",
)
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
) -> None:
    """Print messages of a topic: the body of each on a line, or more with -o.

    Stops after the last message that was there at the start, unless --follow or --to is given. A
    time without an offset from UTC is this machine's. Exits with 1 when a body cannot be read.

    With --group it shares the topic with the group's other members, begins where the group is (at
    --from where the group is new), and acknowledges each message that it has printed.
    """
    from penstock.client.consumer import Consumer

    if follow and end is not None:
        raise click.UsageError("--follow has no end: leave it out, or --to")
    if group is not None and (end is not None or queues):
        raise click.UsageError("the members of a group divide its queues: no --to, no --queue")
    stop_when_unread()
    waits = {"timeout_ms": int(timeout * 1000), "wait_for_broker_ms": int(wait * 1000)}
    where = {**broker_of(store, endpoint), **waits}
    if group is not None:
        from penstock.cli.consume_group import print_as_member

        _check_readable(
            print_as_member(where, group, topic, start, most, follow, tags, sql, _printer(output))
        )
        return
    asked = {**where, "topic": topic, "queues": queues or None}
    ends = None if end is None else _offsets(asked, end)
    with Consumer(**asked, start=start, follow=follow, tags=tags, sql=sql) as consumer:
        if ends is not None:
            consumer.end_at(ends)
        try:
            unreadable = _print_all(consumer, most, follow, _printer(output))
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
    """Where each queue is at `end`: where a consumer would begin that began there."""
    from penstock.client.consumer import Consumer
    from penstock.client.core.start import parse_start
    from penstock.shared.clock import SystemClock

    at = parse_start(end, SystemClock().now_ms())
    if at.offset >= 0:  # a queue may end before it, as it may end before a time
        return at.offset
    with Consumer(**asked, start=end, follow=False) as there:
        while not there.starts:
            there.poll(_LOOK_S)
        return there.starts


def _print_all(consumer: Consumer, most: int | None, follow: bool, show: Print) -> int:
    """Print messages as they come; how many could not be read."""
    unreadable = shown = total = 0

    def text(done: int, total: int) -> str:
        of = f" of {total:,}" if total else ""
        return f"{shown:,} messages; {done:,}{of} looked at"

    # messages printed on a screen, or by the reader of a pipe, would get mixed up with the bar
    with progress("reading", wanted=is_file(sys.stdout), text=text) as moved:
        while shown != most and (batch := consumer.poll(None)):
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


def _printer(output: str) -> Print:
    """How one message is printed."""
    if output == "json":
        return _print_json
    if output == "table":
        numeric = {0, 1}
        layout = Layout(tuple(_COLUMNS), tuple(_COLUMNS.values()), numeric, room())
        print_head(layout)
        return lambda message: _print_row(message, layout)
    if output == "body" and sys.stdout.isatty():
        return _print_shown
    sys.stdout.flush()
    write = sys.stdout.buffer.write
    return lambda message: _print_plain(message, write)


def _print_json(message: Message) -> None:
    from penstock.cli.store_records import row
    from penstock.shared.formats.record import decode_record

    fields = row(decode_record(message.record), with_body=True)
    print_json(fields)
    if "body_error" in fields:
        raise UnreadableBody("the body cannot be read", fields["body_error"])


def _print_row(message: Message, layout: Layout) -> None:
    place = (message.queue_id, message.queue_offset, shown_time(message.store_timestamp_ms))
    kept = (message.tags, message.keys, message.message_id)
    try:
        body: str | None = shortened(as_text(message.body))
    except UnreadableBody as error:
        body = f"cannot be read: {error.value}"
    print_rows(layout, [(*place, *kept, body)])


def _print_shown(message: Message) -> None:
    # a terminal can be trusted with ends of lines, and with tabs
    for line in as_text(message.body).split("\n"):
        sys.stdout.write("\t".join(map(printable, line.split("\t"))) + "\n")


def _print_plain(message: Message, write: Callable[[bytes], object]) -> None:
    write(message.body)
    write(b"\n")


def as_text(body: bytes) -> str:
    """A body as text; bytes that are not UTF-8 are escaped."""
    return bytes(body).decode("utf-8", "backslashreplace")
