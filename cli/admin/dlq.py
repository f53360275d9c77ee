"""`penstock dlq`: dead letters, the messages that a group has given back too often."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.completing import group_names
from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.option_types import COUNT, timeout_option
from penstock.cli.printing.message_output import as_text
from penstock.cli.printing.output import (
    output_option,
    print_json,
    print_table,
    progress,
    rows_option,
    shortened,
    shown_time,
)
from penstock.cli.printing.suggestions import Group
from penstock.shared.errors import MessageNotFound, TopicNotFound, UnreadableBody

if TYPE_CHECKING:
    from penstock.client.core.message import Message


@click.group(cls=Group)
def dlq() -> None:
    """List, show, resend and export dead letters.

    A message that a consumer group has given back as often as its settings allow goes to the topic
    %DLQ%GROUP. It stays there until it expires like any other, and nobody reads it.
    """


@dlq.command(
    "ls",
    epilog="""\b
Examples:
  penstock dlq ls --store ./store
  penstock dlq ls -o json
""",
)
@timeout_option
@broker_options
@rows_option
def ls(timeout: float, store: Path | None, endpoint: str | None, output: str) -> None:
    """Groups that have dead letters, and how many."""
    from penstock.client.connection import Connection
    from penstock.client.groups.admin import GroupAdmin
    from penstock.shared.names import DLQ_PREFIX

    where, found = broker_of(store, endpoint), []
    with (
        progress("asking"),
        Connection(**where) as broker,
        GroupAdmin(**where, timeout_ms=int(timeout * 1000)) as admin,
    ):
        for topic in sorted(broker.topics()):
            if not topic.startswith(DLQ_PREFIX):
                continue
            queues = admin.queues(topic).queues
            count = sum(queue.max_offset - queue.min_offset for queue in queues)
            total = sum(queue.max_offset for queue in queues)
            found.append((topic.removeprefix(DLQ_PREFIX), count, total))
    if output == "json":
        for group, count, total in found:
            print_json({"group": group, "messages": count, "messages_ever": total})
        return
    print_table(("group", "messages", "ever"), found)


@dlq.command(
    "show",
    epilog="""\b
Examples:
  penstock dlq show billing --store ./store
  penstock dlq show billing --max 10 -o json
""",
)
@click.argument("group", shell_complete=group_names)
@click.option("--from", "start", default="earliest", show_default=True, help="As for consume.")
@click.option("--max", "most", type=COUNT, default=100, show_default=True, help="How many at most.")
@timeout_option
@broker_options
@rows_option
def show(
    group: str,
    start: str,
    most: int,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Dead letters of GROUP: topic, how often they came, why, and the beginning of the body."""
    rows = []
    for message in _letters(group, start, most, broker_of(store, endpoint), timeout):
        if output == "json":
            print_json(_fields(message))
        else:
            rows.append(_row(message))
    if output != "json":
        columns = ("offset", "stored", "topic", "times", "reason", "keys", "body", "unique key")
        print_table(columns, rows)


@dlq.command(
    "resend",
    epilog="""\b
Examples:
  penstock dlq resend billing --dry-run
  penstock dlq resend billing --from 120 --max 1
  penstock dlq resend billing --key order-4711
""",
)
@click.argument("group", shell_complete=group_names)
@click.option("--from", "start", default="earliest", show_default=True, help="As for consume.")
@click.option("--max", "most", type=COUNT, help="How many at most.")
@click.option("--key", "key", help="Only messages with this key, or this unique key.")
@click.option("--dry-run", is_flag=True, help="Send nothing, and show what would be sent.")
@timeout_option
@broker_options
@output_option
def resend(
    group: str,
    start: str,
    most: int | None,
    key: str | None,
    dry_run: bool,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Give dead letters to GROUP once more, as if they had never failed.

    They go to the group's topic of retries: no other group sees them. The dead letters stay where
    they are until they expire, so what is resent twice comes twice. Exits with 1 when there is no
    such message, or one could not be sent.
    """
    where = broker_of(store, endpoint)
    chosen = [
        message
        for message in _letters(group, start, None if key else most, where, timeout)
        if key is None or key in (message.unique_key, *(message.keys or "").split())
    ][:most]
    if not chosen:
        raise MessageNotFound(
            "no dead letter fits", key or group, f"see which there are: penstock dlq show {group}"
        )
    sent = len(chosen) if dry_run else _send(chosen, group, where, timeout)
    failed = len(chosen) - sent
    if output == "json":
        print_json({"group": group, "sent": sent, "failed": failed, "dry_run": dry_run})
    else:
        would = "would be given" if dry_run else "were given"
        click.echo(f"{sent} dead letters {would} to group {group} once more")
    if failed:
        sys.exit(1)


@dlq.command(
    "export",
    epilog="""\b
Examples:
  penstock dlq export billing --to letters.jsonl --store ./store
  penstock dlq export billing | jq .reason
""",
)
@click.argument("group", shell_complete=group_names)
@click.option("--from", "start", default="earliest", show_default=True, help="As for consume.")
@click.option("--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="[default: -]")
@timeout_option
@broker_options
def export(
    group: str, start: str, file: Path | None, timeout: float, store: Path | None,
    endpoint: str | None,
) -> None:  # fmt: skip
    """Write all dead letters of GROUP as lines of JSON, with their bodies."""
    count = 0
    letters = _letters(group, start, None, broker_of(store, endpoint), timeout)
    if file is None:
        for message in letters:
            print_json(_fields(message))
        return
    import msgspec

    with file.open("wb") as out, progress("exporting") as moved:
        for message in letters:
            out.write(msgspec.json.encode(_fields(message)) + b"\n")
            count += 1
            moved(count, 0)
    click.echo(f"{count} dead letters are in {file}", err=True)


def _letters(
    group: str, start: str, most: int | None, where: dict[str, Any], timeout: float
) -> Iterator[Message]:
    """Dead letters, oldest first. Raises MessageNotFound if the group never had one."""
    from penstock.client.connection import Connection
    from penstock.shared.messaging.system_topics import dlq_topic
    from penstock.shared.names import check_group

    topic, count = dlq_topic(check_group(group)), 0
    with (
        Connection(**where) as broker,
        broker.consumer(
            topic, start=start, follow=False, timeout_ms=int(timeout * 1000)
        ) as consumer,
    ):
        while count != most:
            try:
                batch = consumer.poll(None)
            except TopicNotFound:
                # the first dead letter creates the topic, and looking for it does not
                hint = f"see which groups have some: {_listing(where)}"
                raise MessageNotFound("the group has no dead letters", group, hint) from None
            if not batch:
                return
            for message in batch[: None if most is None else most - count]:
                count += 1
                yield message


def _listing(where: dict[str, Any]) -> str:
    """The command that lists the same broker's groups with dead letters."""
    store, endpoint = where.get("store"), where.get("endpoint")
    named = ["--store", str(store)] if store else ["--endpoint", str(endpoint)]
    return shlex.join(["penstock", "dlq", "ls", *named])


def _send(chosen: list[Message], group: str, where: dict[str, Any], timeout: float) -> int:
    """Put them into the group's retry topic. Returns how many got there, and reports the others."""
    from penstock.client.connecting.where import Where
    from penstock.client.groups.resender import Resender
    from penstock.shared.formats.record import decode_record
    from penstock.shared.messaging.retried import resent
    from penstock.shared.messaging.system_topics import retry_topic

    there = Where(None, where.get("endpoint"), where.get("store")).arguments("producers")
    records = (resent(decode_record(message.record), group) for message in chosen)
    sent = told = 0
    with progress("sending") as moved, Resender(**there, timeout_ms=int(timeout * 1000)) as out:
        for record, error in out.send(records, retry_topic(group), 1):
            told += 1
            if error is None:
                sent += 1
            else:
                click.echo(f"{record.topic}: {error}", err=True)
            moved(told, len(chosen))
    return sent


def _fields(message: Message) -> dict[str, Any]:
    from penstock.cli.printing.records import row
    from penstock.shared.formats.record import decode_record
    from penstock.shared.messaging.retried import (
        ORIGIN_MESSAGE_ID,
        RETRY_MEMBER,
        RETRY_REASON,
        RETRY_TOPIC,
    )

    properties = message.properties
    return {
        "origin_topic": properties.get(RETRY_TOPIC),
        "origin_message_id": properties.get(ORIGIN_MESSAGE_ID),
        "reason": properties.get(RETRY_REASON),
        "member": properties.get(RETRY_MEMBER),
        "reconsume_times": message.reconsume_times,
        **row(decode_record(message.record), with_body=True),
    }


def _row(message: Message) -> tuple[Any, ...]:
    from penstock.shared.messaging.retried import RETRY_REASON, RETRY_TOPIC

    try:
        body = shortened(as_text(message.body), 40)
    except UnreadableBody as error:
        body = f"cannot be read: {error.value}"
    properties = message.properties
    return (
        message.queue_offset,
        shown_time(message.store_timestamp_ms),
        properties.get(RETRY_TOPIC),
        message.reconsume_times,
        shortened(properties.get(RETRY_REASON) or "", 50),
        message.keys,
        body,
        message.unique_key,
    )
