"""`penstock query`: single messages by key or by id, from a broker or from a store's files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.index_options import index_options
from penstock.cli.options.option_types import COUNT, timeout_option
from penstock.cli.printing.output import (
    print_json,
    print_table,
    progress,
    rows_alone,
    rows_option,
    shortened,
    shown_time,
)
from penstock.cli.printing.suggestions import Group
from penstock.shared.errors import InvalidArgument, MessageNotFound

if TYPE_CHECKING:
    from penstock.client.core.message import Message

# slots and items of the index, if given
_Geometry = tuple[int | None, int | None]


@click.group(cls=Group)
def query() -> None:
    """Find messages by key or by id.

    Asks the broker that runs on the store, or the one at --endpoint. Where none runs, it looks into
    the store's files, which may be a Java RocketMQ's as well.
    """


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all three commands: where to look, how long to wait, how to print."""
    return timeout_option(broker_options(index_options(rows_option(command))))


@query.command(
    "key",
    epilog="""\b
Examples:
  penstock query key orders order-4711 --store ./store
  penstock query key orders order-4711 --max 5 --begin -1h -o json
""",
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("key")
@click.option(
    "--max", "max_num", type=COUNT, default=32, show_default=True, help="How many messages at most."
)
@click.option("--begin", help="Not before: a time, ms since 1970, or how long ago (-15m).")
@click.option("--end", help="Not after; given like --begin.")
@_options
def by_key(
    topic: str,
    key: str,
    max_num: int,
    begin: str | None,
    end: str | None,
    store: Path | None,
    endpoint: str | None,
    timeout: float,
    index_slots: int | None,
    index_items: int | None,
    output: str,
) -> None:
    """The newest messages of TOPIC that have KEY among their keys, or as unique key.

    Exits with 1 when there is none.
    """
    from penstock.client.core import query_core

    times = _time("--begin", begin), _time("--end", end)
    question = query_core.by_key(topic, key, max_num, *times)
    _run(question, store, endpoint, timeout, (index_slots, index_items), output)


@query.command(
    "unique-key",
    epilog="""\b
Examples:
  penstock query unique-key orders AC1102031A2B18B4AAC2000000000001 --store ./store
""",
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("unique_key")
@_options
def by_unique_key(
    topic: str,
    unique_key: str,
    store: Path | None,
    endpoint: str | None,
    timeout: float,
    index_slots: int | None,
    index_items: int | None,
    output: str,
) -> None:
    """The messages of TOPIC that their producer gave UNIQUE_KEY: one, unless it was sent twice.

    Exits with 1 when there is none.
    """
    from penstock.client.core import query_core

    question = query_core.by_unique_key(topic, unique_key)
    _run(question, store, endpoint, timeout, (index_slots, index_items), output)


@query.command(
    "id",
    epilog="""\b
Examples:
  penstock query id C0A8070900002A9F00000000000000AF --store ./store
""",
)
@click.argument("message_id")
@_options
def by_id(
    message_id: str,
    store: Path | None,
    endpoint: str | None,
    timeout: float,
    index_slots: int | None,
    index_items: int | None,
    output: str,
) -> None:
    """The message that MESSAGE_ID names: its broker's address and its offset in the log."""
    from penstock.client.core import query_core

    _run(query_core.by_id(message_id), store, endpoint, timeout, (index_slots, index_items), output)


def _run(
    question: Any,
    store: Path | None,
    endpoint: str | None,
    timeout: float,
    geometry: _Geometry,
    output: str,
) -> None:
    with progress("looking"):
        found, all_of = _ask(question, store, endpoint, timeout, geometry)
    _print(found, output)
    if not found:
        raise MessageNotFound(
            "no message is found",
            " ".join(filter(None, (question.topic, question.key or question.message_id))),
            f"what was sent, and when: {shlex.join(all_of)}",
        )


def _ask(
    question: Any,
    store: Path | None,
    endpoint: str | None,
    timeout: float,
    geometry: _Geometry,
) -> tuple[list[Message], list[str]]:
    """Ask the broker, or the files if none runs. Also returns a command that shows all there."""
    from penstock.client.reading.query import MessageQuery
    from penstock.shared.errors import NotRunning
    from penstock.shared.layout import StorePaths

    broker = broker_of(store, endpoint, "consumers")
    topic = question.topic or "TOPIC"
    try:
        with MessageQuery(**broker, timeout_ms=int(timeout * 1000)) as asking:
            named = ["--store", str(store)] if store else []
            named += ["--endpoint", endpoint] if endpoint else []
            return asking.ask(question), ["penstock", "consume", topic, "-o", "table", *named]
    except NotRunning:
        root = broker["store"]
        if not StorePaths(root).commit_log.is_dir():
            raise
        everything = ["penstock", "store", "export", str(root), topic, "--out", f"{topic}.jsonl"]
        return _look(question, root, *geometry), everything


def _look(question: Any, root: Path, slots: int | None, items: int | None) -> list[Message]:
    from penstock.client.core.message import Message
    from penstock.maintenance.store_query import StoreQuery
    from penstock.shared.store.directory import StoreDirectory

    with StoreDirectory(root) as opened, StoreQuery(opened, slots, items) as looking:
        if question.message_id:
            return [Message(looking.by_id(question.message_id))]
        return [Message(record) for record in looking.by_key(*question[:-1])]


def _print(found: Iterable[Message], output: str) -> None:
    from penstock.cli.printing.records import row
    from penstock.shared.formats.record import decode_record

    rows = [row(decode_record(message.record), with_body=True) for message in found]
    if output == "json":
        for fields in rows:
            print_json(fields)
    elif rows or rows_alone():
        columns = ("queue", "offset", "stored", "tags", "keys", "message id", "body")
        print_table(columns, [[*_shown(fields), _body(fields)] for fields in rows])


def _shown(fields: dict[str, Any]) -> list[Any]:
    return [
        fields["queue_id"],
        fields["queue_offset"],
        shown_time(fields["store_timestamp_ms"]),
        fields["tags"],
        fields["keys"],
        fields["message_id"],
    ]


def _body(fields: dict[str, Any]) -> str:
    text = fields["body"]
    return f"{fields['body_size']} bytes" if text is None else shortened(str(text))


def _time(option: str, text: str | None) -> int | None:
    """A time on the command line, as ms since 1970."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    from penstock.client.core.start import parse_start
    from penstock.shared.clock import SystemClock

    try:
        at_ms = parse_start(text, SystemClock().now_ms()).at_ms
    except InvalidArgument:
        at_ms = -1
    if at_ms < 0:  # earliest and latest too
        hint = "write a time (2026-01-02T03:04), ms since 1970, or how long ago (-15m)"
        raise InvalidArgument(f"the time of {option} cannot be read", repr(text), hint)
    return at_ms
