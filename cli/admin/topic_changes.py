"""`penstock topics describe`, `update` and `rm`: one topic, its settings and its queues."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.option_types import QUEUES, Seconds, timeout_option
from penstock.cli.printing.output import (
    output_option,
    print_json,
    print_table,
    print_text,
    progress,
    rows_option,
)
from penstock.shared.wire.messages import TopicDescribed

_LETTERS = (("r", 4), ("w", 2), ("i", 1))


class Permission(click.IntRange):
    """A permission as RocketMQ's number from 0 to 7, or as letters: r, w, rw."""

    name = "perm"

    def __init__(self) -> None:
        super().__init__(0, 7)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isdecimal() and int(value) < 8:
            return int(value)
        bits = dict(_LETTERS)
        if not value or set(value) - bits.keys():
            self.fail(f"{value!r} is neither of r, w, rw nor a number from 0 to 7", param, ctx)
        return sum(bits[letter] for letter in set(value))


def shown_perm(perm: int) -> str:
    """The permission as letters; "-" if nothing is permitted."""
    return "".join(letter for letter, bit in _LETTERS if perm & bit) or "-"


def setting_row(config: TopicDescribed) -> dict[str, Any]:
    """A topic's settings, as `-o json` prints them."""
    return {
        "topic": config.topic,
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": config.perm,
        "order": config.order,
        "attributes": config.attributes,
    }


def describe_line(config: TopicDescribed) -> str:
    attributes = "".join(f", {key}={value}" for key, value in sorted(config.attributes.items()))
    return (
        f"topic {config.topic}: {config.read_queues} queues to read, {config.write_queues} to "
        f"write, permission {shown_perm(config.perm)}{', ordered' if config.order else ''}"
        f"{attributes}"
    )


@contextlib.contextmanager
def _asking(store: Path | None, endpoint: str | None, timeout: float, what: str) -> Any:
    """A producer, and an admin for the broker's other endpoints, under a progress bar."""
    from penstock.client.groups.admin import GroupAdmin
    from penstock.client.sending.producer import Producer

    broker = broker_of(store, endpoint, "producers")
    timeout_ms = int(timeout * 1000)
    with (
        progress(what),
        Producer(**broker, timeout_ms=timeout_ms) as producer,
        GroupAdmin(**broker, timeout_ms=timeout_ms) as admin,
    ):
        yield producer, admin


@click.command(
    epilog="""\b
Examples:
  penstock topics describe orders --store ./store
  penstock topics describe orders -o json
""",
)
@click.argument("topic", shell_complete=topic_names)
@timeout_option
@broker_options
@rows_option
def describe(
    topic: str, timeout: float, store: Path | None, endpoint: str | None, output: str
) -> None:
    """What is set of a topic, and what each of its queues holds.

    With -o csv and -o plain only the queues.
    """
    with _asking(store, endpoint, timeout, "asking") as (producer, admin):
        config = producer.describe_topic(topic, timeout)
        held = {queue.queue_id: queue for queue in admin.queues(topic).queues}
    rows = []
    for number in range(max(config.read_queues, config.write_queues)):
        low, high = (held[number].min_offset, held[number].max_offset) if number in held else (0, 0)
        use = "r" * (number < config.read_queues) + "w" * (number < config.write_queues)
        rows.append((number, use, low, high, high - low))
    if output == "json":
        names = ("queue", "use", "min_offset", "max_offset", "messages")
        queues = [dict(zip(names, row, strict=True)) for row in rows]
        print_json(setting_row(config) | {"queues": queues})
        return
    print_text(describe_line(config))
    print_table(("queue", "use", "min offset", "max offset", "messages"), rows)


@click.command(
    epilog="""\b
Examples:
  penstock topics update orders --queues 8            grow or shrink, in the safe order
  penstock topics update orders --queues 8 --dry-run
  penstock topics update orders --perm r              no new messages
  penstock topics update orders --attribute +message.type=FIFO
  penstock topics update orders --write-queues 2      one number alone, at once
""",
)
@click.argument("topic", shell_complete=topic_names)
@click.option("--queues", type=QUEUES, help="Grow or shrink to this many, step by step.")
@click.option("--read-queues", type=QUEUES, help="Set how many are read, and nothing else.")
@click.option("--write-queues", type=QUEUES, help="Set how many are written, and nothing else.")
@click.option("--perm", type=Permission(), help="What may be done: r, w, rw, or RocketMQ's number.")
@click.option("--order/--no-order", default=None, help="RocketMQ's flag of an ordered topic.")
@click.option("--attribute", "attributes", multiple=True, help="+KEY=VALUE, or -KEY; repeatable.")
@click.option(
    "--settle",
    type=Seconds(),
    default=35,
    show_default=True,
    help="With --queues: how long clients may take to know of a change.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@timeout_option
@broker_options
@output_option
def update(
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    order: bool | None,
    attributes: tuple[str, ...],
    settle: float,
    dry_run: bool,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Change what is set of a topic.

    --queues grows or shrinks a topic that is in use: to grow, queues are read before they are
    written; to shrink, they are no longer written, and read until every group has come to their
    ends. It may be interrupted: the same command goes on, and the old number takes it back.

    --read-queues and --write-queues set one number at once. What lies in a queue that is not read
    any more is hidden, and there again when the number is raised.
    """
    from penstock.shared.errors import InvalidArgument

    changes = _changes(read_queues, write_queues, perm, order, attributes)
    if queues is None and not changes:
        raise InvalidArgument(
            "nothing is to be changed", topic, "say what: penstock topics update --help"
        )
    if queues is not None and (read_queues or write_queues):
        raise InvalidArgument(
            "both --queues and one of its two numbers are given", queues, "leave out one of them"
        )
    with _asking(store, endpoint, timeout, "changing") as (producer, admin):
        config = producer.describe_topic(topic, timeout)
        if changes:
            config = producer.update_topic(topic, **changes, dry_run=dry_run, timeout=timeout)
        if queues is not None and dry_run:
            _print_steps(config, queues)
            config = structs.replace(config, read_queues=queues, write_queues=queues)
        elif queues is not None:
            from penstock.client.topic_scaling import TopicScaling

            config = TopicScaling(
                producer,
                admin,
                topic,
                queues,
                settle_s=settle,
                report=lambda line: click.echo(line, err=True),
            ).run()
    if output == "json":
        print_json(setting_row(config))
    else:
        click.echo(("it would be: " if dry_run else "") + describe_line(config))


def _changes(
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    order: bool | None,
    attributes: tuple[str, ...],
) -> dict[str, Any]:
    """The given changes, under the names of `update_topic`."""
    given = {
        "read_queues": read_queues,
        "write_queues": write_queues,
        "perm": perm,
        "order": order,
        "attributes": dict(_pair(each) for each in attributes) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _pair(attribute: str) -> tuple[str, str]:
    key, _, value = attribute.partition("=")
    return key, value


def _print_steps(config: TopicDescribed, wanted: int) -> None:
    from penstock.shared.messaging.topic_rules import TopicConfig
    from penstock.shared.messaging.topic_scaling import Step, next_step

    names = {
        Step.READ_MORE: "read queues to",
        Step.WRITE_MORE: "when members of groups have the new ones: write queues to",
        Step.WRITE_FEWER: "write queues to",
        Step.READ_FEWER: "when producers know and groups have read all: read queues to",
    }
    now = TopicConfig(config.read_queues, config.write_queues)
    while (step := next_step(now, wanted)) is not None:
        click.echo(f"{names[step]} {wanted}", err=True)
        if step in (Step.READ_MORE, Step.READ_FEWER):
            now = TopicConfig(wanted, now.write_queues)
        else:
            now = TopicConfig(now.read_queues, wanted)


@click.command(
    epilog="""\b
Examples:
  penstock topics rm orders --store ./store            say what would go
  penstock topics rm orders --store ./store --apply
""",
)
@click.argument("topic", shell_complete=topic_names)
@click.option("--apply", is_flag=True, help="Delete it. Without this, only say what would go.")
@timeout_option
@broker_options
@output_option
def rm(
    topic: str, apply: bool, timeout: float, store: Path | None, endpoint: str | None, output: str
) -> None:
    """Delete a topic with its queues.

    Its messages cannot be read any more, at once. They stay in the log until they expire. Groups
    lose their offsets in it. A topic that is created again under the name begins at offset 0.
    """
    with _asking(store, endpoint, timeout, "deleting") as (producer, admin):
        queues = admin.queues(topic).queues
        config = producer.delete_topic(topic, dry_run=not apply, timeout=timeout)
    count = sum(queue.max_offset - queue.min_offset for queue in queues)
    if output == "json":
        print_json(setting_row(config) | {"messages": count, "deleted": config.deleted})
        return
    what = f"topic {topic}, with {len(queues)} queues and {count} messages"
    click.echo(f"deleted {what}" if apply else f"would delete {what}; to do it: --apply")
