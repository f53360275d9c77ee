"""`penstock tail`: the newest messages of a topic, and those that come."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options, wait_option
from penstock.cli.options.option_types import timeout_option
from penstock.cli.printing.message_output import Print, message_options, printer
from penstock.cli.streams import READER_LOOK_S, check_reader, stop_when_unread
from penstock.shared.errors import UnreadableBody

if TYPE_CHECKING:
    from penstock.client.core.message import Message
    from penstock.client.reading.consumer import Consumer

# How long one poll waits for the broker to say where queues end, before it asks again.
_LOOK_S = 0.05


@click.command(
    epilog="""\b
Examples:
  penstock tail orders
  penstock tail orders -n 100 --no-follow
  penstock tail orders --template '%p/%o %k: %s\\n'
  penstock tail orders --select .customer.name
  penstock tail orders -n 0 -o json | jq .keys
"""
)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "-n",
    "--lines",
    "most",
    type=click.IntRange(0, 100_000),
    default=10,
    show_default=True,
    help="How many messages to begin with: the newest ones of all queues.",
)
@click.option(
    "-f",
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Go on with what comes.",
)
@click.option("--tags", default="", help="Only messages with one of these tags: 'TagA || TagB'.")
@timeout_option
@wait_option
@broker_options
@message_options
def tail(
    topic: str,
    most: int,
    follow: bool,
    tags: str,
    timeout: float,
    wait: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
    template: str | None,
    path: str | None,
) -> None:
    """Print the newest messages of TOPIC, then those that come, until Ctrl-C.

    The first ones are in the order in which they were stored. Nothing is acknowledged: it is no
    member of a group. Exits with 1 when a body could not be read.
    """
    from penstock.client.reading.consumer import Consumer

    stop_when_unread()
    waits = {"timeout_ms": int(timeout * 1000), "wait_for_broker_ms": int(wait * 1000)}
    asked: dict[str, Any] = {**broker_of(store, endpoint, "consumers", wait), **waits}
    show = printer(output, template, path)
    with Consumer(**asked, topic=topic, start="latest", follow=False) as there:
        while not there.is_placed:
            there.poll(_LOOK_S)
        ends = there.starts
    begin = {queue: max(0, end - most) for queue, end in ends.items()}
    with Consumer(**asked, topic=topic, start=begin, tags=tags, follow=True) as consumer:
        unreadable = _print(_newest(consumer, ends, most), show)
        while follow:
            check_reader()
            unreadable += _print(consumer.poll(READER_LOOK_S), show)
    if unreadable:
        raise UnreadableBody(
            "messages have bodies that cannot be read",
            unreadable,
            "-o json shows the bytes that are stored",
        )


def _newest(consumer: Consumer, ends: dict[int, int], most: int) -> list[Message]:
    """The newest messages of all queues, and those stored meanwhile, in the log's order."""
    found: list[Message] = []
    while any(consumer.positions.get(queue, end) < end for queue, end in ends.items()) or (
        not consumer.is_placed
    ):
        found += consumer.poll(_LOOK_S)
    found.sort(key=lambda message: message.physical_offset)
    old = [each for each in found if each.queue_offset < ends.get(each.queue_id, 0)]
    new = [each for each in found if each.queue_offset >= ends.get(each.queue_id, 0)]
    return old[len(old) - min(most, len(old)) :] + new


def _print(messages: list[Message], show: Print) -> int:
    """Print messages. Returns how many could not be read."""
    unreadable = 0
    for message in messages:
        try:
            show(message)
        except UnreadableBody as error:
            unreadable += 1
            click.echo(f"{message.message_id}: {error}", err=True)
    sys.stdout.flush()
    return unreadable
