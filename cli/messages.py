"""`penstock produce` and `penstock consume`: messages between a topic and a terminal or a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from penstock.cli.endpoints import broker_of, broker_options, wait_option
from penstock.cli.output import output_option, print_json
from penstock.shared.errors import UnreadableBody

if TYPE_CHECKING:
    from penstock.client.message import Message


@click.command(
    epilog="""\b
Examples:
  echo '{"id": 1}' | penstock produce orders --key 1 --store ./store
  penstock produce lines README.md --tag readme
  penstock produce orders orders.jsonl --endpoint tcp://broker:20911 --wait 30
  penstock produce blobs photo.jpg --whole -o json
"""
)
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key", help="The messages' key, or several with spaces between.")
@click.option("--tag", help="The messages' tag.")
@click.option("--queue", type=click.IntRange(min=0), help="The queue; else the next in turn.")
@click.option("--shard", help="A sharding key: messages that share it stay in order.")
@click.option("--whole", is_flag=True, help="The whole input is one message, not each line.")
@click.option("--ack", type=click.Choice(["durable", "written"]), help="What to wait for.")
@click.option(
    "--compression", type=click.Choice(["zlib", "lz4", "zstd"]), help="For bodies from 4 KiB on."
)
@click.option(
    "--ring/--no-ring",
    default=True,
    show_default=True,
    help="Send much through shared memory, where the broker is on this machine.",
)
@click.option("--timeout", type=float, default=30, show_default=True, help="Seconds.")
@wait_option
@broker_options
@output_option
def produce(
    topic: str,
    file: BinaryIO,
    key: str | None,
    tag: str | None,
    queue: int | None,
    shard: str | None,
    whole: bool,
    ack: str | None,
    compression: str | None,
    ring: bool,
    timeout: float,
    wait: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Send messages to a topic: each line of FILE, or of standard input, is one.

    With -o json prints each message's receipt.
    """
    from collections import deque

    from penstock.client.frames import SendFuture
    from penstock.client.producer import Producer

    bodies = [file.read()] if whole else (line.rstrip(b"\r\n") for line in file)
    waiting: deque[SendFuture] = deque()
    count = 0

    def take(oldest: SendFuture) -> None:
        nonlocal count
        receipt = oldest.result(timeout + 1)
        count += 1
        if output == "json":
            print_json(receipt)

    with Producer(
        **broker_of(store, endpoint),
        timeout_ms=int(timeout * 1000),
        ack=ack or "",
        compression=compression,
        ring=ring,
        wait_for_broker_ms=int(wait * 1000),
    ) as producer:
        for body in bodies:
            waiting.append(producer.send(topic, body, tags=tag, keys=key, queue=queue, shard=shard))
            while waiting and (waiting[0].done() or len(waiting) > 100_000):
                take(waiting.popleft())
        while waiting:
            take(waiting.popleft())
    click.echo(f"{count} {'message' if count == 1 else 'messages'} sent to {topic}", err=True)


@click.command(
    epilog="""\b
Examples:
  penstock consume orders --store ./store
  penstock consume orders --from latest --follow
  penstock consume orders --from -15m -o json | jq .keys
  penstock consume orders --from 2026-01-02T03:04 --max 10
  penstock consume orders --tags 'paid || sent'
  penstock consume orders --sql "amount > 100 AND TAGS = 'paid'"
"""
)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="earliest, latest, an offset, a time, or how long ago (-15m).",
)
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages instead of stopping.")
@click.option("--queue", "queues", type=click.IntRange(min=0), multiple=True, help="Only this one.")
@click.option("--tags", default="", help="Only messages with one of these tags: 'TagA || TagB'.")
@click.option("--sql", default="", help="Only messages that fulfil this SQL92 condition.")
@click.option(
    "--timeout", type=float, default=30, show_default=True, help="Seconds the broker may be silent."
)
@wait_option
@broker_options
@output_option
def consume(
    topic: str,
    start: str,
    most: int | None,
    follow: bool,
    queues: tuple[int, ...],
    tags: str,
    sql: str,
    timeout: float,
    wait: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Print messages of a topic: the body of each on a line, or whole ones with -o json.

    Stops behind the last message that was there at the start, unless --follow is given.
    """
    from penstock.client.consumer import Consumer

    with Consumer(
        **broker_of(store, endpoint),
        topic=topic,
        start=start,
        queues=queues or None,
        follow=follow,
        tags=tags,
        sql=sql,
        timeout_ms=int(timeout * 1000),
        wait_for_broker_ms=int(wait * 1000),
    ) as consumer:
        try:
            for count, message in enumerate(consumer, 1):
                _print(message, output)
                if count == most:
                    return
        finally:
            if count := consumer.skipped:
                noun = "message" if count == 1 else "messages"
                click.echo(f"{count} {noun} passed over: expired or lost", err=True)


def _print(message: Message, output: str) -> None:
    if output == "json":
        from penstock.cli.store_records import row
        from penstock.shared.record import decode_record

        print_json(row(decode_record(message.record), with_body=True))
    else:
        try:
            body = message.body
        except UnreadableBody as error:
            click.echo(f"error: {message.message_id}: {error}", err=True)
            return
        sys.stdout.buffer.write(body + b"\n")
    sys.stdout.flush()
