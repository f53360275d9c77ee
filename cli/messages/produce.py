"""`penstock produce`: lines of a file, a pipe or a terminal become messages."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options, wait_option
from penstock.cli.options.option_types import MAX_DELAY_S, QUEUE_ID, Moment, Seconds, timeout_option
from penstock.cli.printing.output import is_file, output_option, progress, shown_bytes
from penstock.shared.errors import FlushTimeout, InvalidArgument, PenstockError

if TYPE_CHECKING:
    from penstock.cli.messages.line_input import LineInput
    from penstock.cli.messages.sending import Sending

# The limit of a line until the broker has stated its limit of a message.
_MOST_BYTES = 64 << 20


class Unfinished(PenstockError):
    """Not every line was stored. It says why, how many were, and how to send the others."""

    def __init__(self, cause: PenstockError, sending: Sending, go_on: str) -> None:
        super().__init__(cause.what, cause.value, cause.hint, cause.status)
        self.exit_code = cause.exit_code
        first = sending.first_failed
        self.details = {"stored": sending.stored, "first_not_stored": first, "go_on": go_on}
        stored = f"{sending.stored} {'line is' if sending.stored == 1 else 'lines are'} stored"
        after = sending.stored - (first - 1)
        more = f", and {after} behind it are stored" if after > 0 else ""
        self.lines = [f"{stored}; the first that is not is line {first}{more}", f"go on: {go_on}"]


def _properties(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} has not the form NAME=VALUE", ctx, parameter)
        if found.setdefault(name, text) != text:
            raise click.BadParameter(f"{name!r} is given two values", ctx, parameter)
    return found


@click.command(
    epilog="""\b
Examples:
  echo '{"id": 1}' | penstock produce orders --key 1 --store ./store
  penstock produce lines README.md --tag readme
  penstock produce blobs photo.jpg --whole -o json
  penstock produce orders orders.jsonl --endpoint tcp://broker:20911 --wait 30
  penstock produce orders orders.jsonl --property region=eu --property source=shop
  echo reminder | penstock produce mails --delay 90m
  echo surprise | penstock produce mails --deliver-at 2026-12-24T18:00:00+01:00
"""
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("name", metavar="[FILE]", default="-")
@click.option("--key", "keys", multiple=True, help="A key of the messages; repeatable.")
@click.option("--tag", help="The messages' tag.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_properties,
    help="A property of the messages; repeatable.",
)
@click.option("--queue", type=QUEUE_ID, help="The queue; else the next in turn.")
@click.option("--shard", help="A sharding key: messages that share it stay in order.")
@click.option("--whole", is_flag=True, help="The whole input is one message, not each line.")
@click.option(
    "--delay",
    type=Seconds(MAX_DELAY_S),
    help="Deliver later by this: seconds, or 500ms, 10s, 90m, 2h; up to 40 days.",
)
@click.option("--deliver-at", type=Moment(), help="Deliver at this time, or at these ms of 1970.")
@click.option(
    "--delay-level",
    type=click.IntRange(1, 18),
    help="Deliver after the delay of this level, as RocketMQ's 1s 5s 10s ... 2h.",
)
@click.option(
    "--ack",
    type=click.Choice(["durable", "written"]),
    help="What to wait for; without it what the broker is set to wait for.",
)
@click.option(
    "--compression", type=click.Choice(["zlib", "lz4", "zstd"]), help="For bodies from 4 KiB on."
)
@click.option(
    "--ring/--no-ring",
    default=True,
    show_default=True,
    help="Send much through shared memory, where the broker is on this machine.",
)
@timeout_option
@wait_option
@broker_options
@output_option
@click.pass_context
def produce(
    ctx: click.Context,
    /,
    topic: str,
    name: str,
    keys: tuple[str, ...],
    tag: str | None,
    properties: dict[str, str],
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
    **when: Any,
) -> None:
    """Send messages to a topic: each line of FILE, or of standard input, is one.

    A message is stored when the command ends. With -o json prints each one's receipt. Ctrl-C ends
    the sending: what is stored, and how to go on, is said. A second one ends the command at once.
    """
    from penstock.cli.messages.line_input import LineInput
    from penstock.cli.messages.sending import Receipts, Sending
    from penstock.client.sending.producer import Producer

    _check(topic, queue, shard)
    file = _opened(ctx, name)
    receipts = Receipts(output == "json")
    with Producer(
        **broker_of(store, endpoint, "producers", wait),
        timeout_ms=int(timeout * 1000),
        ack=ack or "",
        compression=compression,
        ring=ring,
        wait_for_broker_ms=int(wait * 1000),
    ) as producer:
        when |= {"tags": tag, "keys": " ".join(keys) or None, "shard": shard, "queue": queue}
        send = partial(producer.send, topic, **_said(when, properties))
        sending = Sending(send, timeout, receipts)

        def most() -> int:
            return producer.max_message_bytes or _MOST_BYTES

        given = LineInput(file.fileno(), most, sending.idle)
        if file.isatty() and sys.stderr.isatty():
            click.echo("reading lines from the terminal; Ctrl-D ends them", err=True)
        _run(sending, given.whole() if whole else given.lines(), given, file, output)
    _report(ctx, sending, topic, whole)
    receipts.end()


def _check(topic: str, queue: int | None, shard: str | None) -> None:
    """Raises InvalidArgument for options with which no message can be sent."""
    from penstock.shared.names import check_topic

    check_topic(topic)
    if queue is not None and shard is not None:
        raise InvalidArgument(
            "both a queue and a sharding key are named",
            f"--queue {queue} and --shard {shard}",
            "leave one out: a sharding key chooses the queue",
        )


def _opened(ctx: click.Context, name: str) -> BinaryIO:
    """The input. Raises InvalidArgument, with a hint in case a message was given as the file."""
    try:
        opened = click.open_file(name, "rb")
        return cast("BinaryIO", ctx.with_resource(opened))
    except OSError as error:
        raise InvalidArgument(
            "the file of messages cannot be read",
            f"{name}: {error.strerror}",
            "name another; or, if this is a message: "
            f"echo {shlex.quote(name)} | {shlex.join(_words(ctx))}",
        ) from None


def _said(options: dict[str, Any], properties: dict[str, str]) -> dict[str, Any]:
    """The options without those left out, so that a message with none takes the fast path."""
    options["properties"] = properties or None
    return {name: value for name, value in options.items() if value is not None}


def _run(
    sending: Sending, lines: Iterator[bytes], given: LineInput, file: BinaryIO, output: str
) -> None:
    """Send, with a bar unless it would get mixed up with receipts or with typed lines."""
    total = os.fstat(file.fileno()).st_size if is_file(file) else 0

    def text(done: int, total: int) -> str:
        of = f" of {shown_bytes(total)}" if total else ""
        return f"{sending.stored:,} messages, {shown_bytes(done)}{of}"

    def counted() -> Iterator[bytes]:
        for line in lines:
            moved(given.bytes_read, total)
            yield line

    wanted = (output != "json" or is_file(sys.stdout)) and not file.isatty()
    with progress("sending", wanted=wanted, text=text) as moved:
        sending.run(counted())


def _report(ctx: click.Context, sending: Sending, topic: str, whole: bool) -> None:
    """Print what was stored. Raises the error that ended the sending early."""
    if sending.error is not None:
        if whole:
            raise sending.error
        raise Unfinished(sending.error, sending, _go_on(ctx, sending.first_failed))
    noun = "message" if sending.stored == 1 else "messages"
    click.echo(f"{sending.stored} {noun} sent to {topic}", err=True)
    if sending.late:
        raise FlushTimeout(
            "messages are stored, but were not on disk within sync_flush_timeout_ms",
            f"{sending.late} of {sending.stored}",
            "do not send them again; see how the disk is: penstock status",
        )


def _go_on(ctx: click.Context, line: int) -> str:
    """A command that sends the lines from this one on, with the options of the present one."""
    name = ctx.params["name"]
    source = "FILE" if name == "-" else shlex.quote(name)
    return f"tail -n +{line} {source} | {shlex.join(_words(ctx))}"


def _words(ctx: click.Context) -> list[str]:
    """This command with its options as given, without the file."""
    words = ["penstock", "produce", ctx.params["topic"]]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not given or not isinstance(parameter, click.Option):
            continue
        value = ctx.params[name]
        option = max(parameter.opts, key=len)
        if parameter.is_flag:
            words.append(option if value else parameter.secondary_opts[0])
        elif isinstance(value, dict):
            words += [word for pair in value.items() for word in (option, "=".join(pair))]
        elif isinstance(value, tuple):
            words += [word for each in value for word in (option, each)]
        else:
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return words
