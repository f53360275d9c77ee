"""`penstock trace`: where a message is, how it got there, and which groups have had it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.index_options import index_options
from penstock.cli.options.option_types import COUNT, timeout_option
from penstock.cli.printing.output import output_option, print_json, printable, progress, shown_time
from penstock.shared.errors import MessageNotFound

if TYPE_CHECKING:
    from penstock.cli.trace.sources import Source
    from penstock.cli.trace.story import Had, Reader, Stop, Story

UNKNOWN = "unknown"


@click.command(
    epilog="""\b
Examples:
  penstock trace order-4711 --store ./store
  penstock trace AC1102031A2B18B4AAC2000000000001 --topic orders -o json
  penstock trace C0A8070900002A9F00000000000000AF | grep billing

\b
What the groups say of a record:
  acknowledged    the group's offset is past it. So it is of a group that began later or was
                  set past it. Who had the queue then is known of its last claims, while the
                  coordinator runs
  filtered        likewise, and what the group's members subscribe to leaves it out
  with a member   the queue is that member's; it may have the message in hand
  waiting         nobody has the queue
  broadcasting    each member keeps its own place, which no broker knows
"""
)
@click.argument("text", metavar="KEY|ID")
@click.option("--topic", help="Only messages that are of this topic, or for it.")
@click.option(
    "--max", "most", type=COUNT, default=10, show_default=True, help="How many messages at most."
)
@timeout_option
@broker_options
@index_options
@output_option
def trace(
    text: str,
    topic: str | None,
    most: int,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    index_slots: int | None,
    index_items: int | None,
    output: str,
) -> None:
    """Tell what became of the message with KEY or ID: each record of it, and who reads it.

    KEY is one of its keys, or its unique key; ID the message id of a receipt. A message may have
    many records: while it waits for its time or its transaction, each time that a group gives it
    back, and as a dead letter. Asks the broker that runs on the store, or the one at --endpoint;
    where none runs it looks into the store's files, which may be a Java RocketMQ's as well. What
    cannot be known from there is `unknown`, and null with `-o json`.

    Exits with 1 when nothing is found.
    """
    from penstock.cli.trace.story import stories

    if topic is not None:
        from penstock.shared.names import check_topic

        check_topic(topic)
    geometry = index_slots, index_items
    with (
        progress("looking") as moved,
        _source(store, endpoint, int(timeout * 1000), geometry) as source,
    ):
        found = stories(source, text, topic, int(time.time() * 1000), moved)
        has_members = source.groups().with_members
    if not found:
        raise MessageNotFound(
            "no message has this key or id",
            text,
            "see what a topic has: penstock consume TOPIC -o table",
        )
    for story in found[-most:]:
        if output == "json":
            print_json(story)
        else:
            for line in _lines(story, has_members):
                click.echo(printable(line))
    if len(found) > most:
        click.echo(f"{len(found) - most} older messages have it too: see --max", err=True)


def _source(
    store: Path | None,
    endpoint: str | None,
    timeout_ms: int,
    geometry: tuple[int | None, int | None],
) -> Source:
    from penstock.cli.trace.sources import Source
    from penstock.shared.errors import NotRunning
    from penstock.shared.layout import StorePaths

    where = broker_of(store, endpoint)
    if "endpoint" in where:
        return Source(None, where, timeout_ms, geometry)
    # imported late: it needs Linux, and asking by endpoint does not
    from penstock.shared.process.find_broker import find_running

    root = where["store"]
    try:
        find_running(root)
    except NotRunning:
        if not StorePaths(root).commit_log.is_dir():
            raise
        return Source(root, None, timeout_ms, geometry)
    return Source(root, where, timeout_ms, geometry)


def _lines(story: Story, has_members: bool) -> Iterator[str]:
    words = [f"topic {story.topic}"]
    words += [f"keys {story.keys}"] if story.keys else []
    words += [f"tags {story.tags}"] if story.tags else []
    yield f"message {story.unique_key or '(without a unique key)'}: {', '.join(words)}"
    numbers = {stop.physical_offset: at for at, stop in enumerate(story.records, 1)}
    for number, stop in enumerate(story.records, 1):
        where = f"{stop.topic}, queue {stop.queue_id}, offset {stop.queue_offset}"
        yield f"  {number}  {stop.kind}: {where}, stored {shown_time(stop.stored_ms)}"
        for line in (*_way(stop, numbers), _place(stop)):
            yield f"     {line}"
        if stop.groups is None:
            continue
        for reader in stop.groups:
            back = reader.given_back_as
            given = f"given back, as {numbers[back]}; " if back is not None else ""
            yield f"     group {reader.group}: {given}{_state(reader, has_members)}"
        if not stop.groups:
            yield "     no group is known to read it"


def _place(stop: Stop) -> str:
    in_file = (
        f"{stop.file} at {stop.file_offset}" if stop.file else f"log at {stop.physical_offset}"
    )
    disk = f"{stop.disk}" if stop.disk else f"flushed or not: {UNKNOWN}"
    words = {None: f"readable: {UNKNOWN}", True: "readable", False: "not readable"}
    readable = "" if stop.groups is None else f", {words[stop.readable]}"
    return f"{in_file}, {stop.size} bytes, {disk}{readable}, id {stop.message_id}"


def _way(stop: Stop, numbers: dict[int, int]) -> Iterator[str]:
    """How the record got there, and what happened to it."""
    says = stop.says
    led_to = f", as {numbers[stop.led_to]}" if stop.led_to is not None else ""
    to = f"for {says['for_topic']}, queue {says['for_queue']}" if "for_topic" in says else ""
    if stop.kind == "delayed":
        due = UNKNOWN if stop.due_ms is None else shown_time(stop.due_ms)
        yield f"{to}, due {due}: {_of_delayed(stop)}{led_to}"
    elif stop.kind == "half message":
        checks = f", asked for {says['checks']} times before" if says["checks"] else ""
        group = f"of producer group {says['producer_group']}{checks}"
        yield f"{to}, {group}: {_OF_HALF.get(str(stop.outcome), stop.outcome)}{led_to}"
    if says.get("reconsume_times"):
        times = says["reconsume_times"]
        reason = says["reason"] or f"reason {UNKNOWN}"
        count = "once" if times == 1 else f"{times} times"
        by = f" by {says['member']}" if says["member"] else ""
        yield f"given back {count}, the last time{by}: {reason}"


_OF_HALF = {
    "ended": "it has ended, and how is not kept; no committed message of it is found",
    "unknown": f"outcome {UNKNOWN}",
}


def _of_delayed(stop: Stop) -> str:
    if stop.outcome == "overdue":
        return "no copy of it is found"
    return {"unknown": f"delivered: {UNKNOWN}"}.get(str(stop.outcome), str(stop.outcome))


def _state(reader: Reader, has_members: bool) -> str:
    at = f", its offset is {reader.offset}" if reader.offset is not None else ""
    if reader.state == "broadcasting":
        return reader.state
    if reader.state == "unknown":
        return f"{UNKNOWN}, it has no offset of this queue"
    if reader.state == "with a member":
        since = _seconds(reader.held_ms, "since {:.1f} s ago", f"since when is {UNKNOWN}")
        seen = _seconds(reader.seen_ms_ago, ", who was seen {:.1f} s ago", "")
        return f"with member {reader.member}, {since}{seen}, not acknowledged{_before(reader)}{at}"
    if reader.state == "waiting":
        who = "" if has_members else f"; its members are {UNKNOWN}"
        return f"waiting{_before(reader)}{at}{who}"
    return f"{reader.state}{at}, {_had(reader)}"


def _had(reader: Reader) -> str:
    if not reader.had:
        return f"who had it is {UNKNOWN}"
    return ", then ".join(f"member {each.member} had it {_between(each)}" for each in reader.had)


def _between(had: Had) -> str:
    since = UNKNOWN if had.since_ms is None else shown_time(had.since_ms)
    until = UNKNOWN if had.until_ms is None else shown_time(had.until_ms)
    return f"between {since} and {'now' if had.lasts else until}"


def _before(reader: Reader) -> str:
    return f", {reader.before} before it" if reader.before is not None else ""


def _seconds(ms: int | None, text: str, without: str) -> str:
    return without if ms is None else text.format(ms / 1000)
