"""`penstock topics`: lists topics and creates one; topic_changes.py has the rest."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.admin.topic_changes import describe, rm, shown_perm, update
from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.option_types import QUEUES, timeout_option
from penstock.cli.printing.output import (
    output_option,
    print_json,
    print_table,
    progress,
    rows_option,
)
from penstock.cli.printing.suggestions import Group
from penstock.shared.messaging.topic_rules import PERM_DEFAULT
from penstock.shared.wire.messages import TopicList


@click.group(cls=Group)
def topics() -> None:
    """List, create, describe, change and delete topics."""


@topics.command(
    "ls",
    epilog="""\b
Examples:
  penstock topics ls --store ./store
  penstock topics ls -o json
""",
)
@timeout_option
@broker_options
@rows_option
def ls(timeout: float, store: Path | None, endpoint: str | None, output: str) -> None:
    """All topics, how many queues each has to read and to write, and what may be done; of a stopped
    store too."""
    with progress("asking"):
        found = _topics(store, endpoint, timeout)
    rows = []
    for topic, queues in found.topics.items():
        read_queues, perm = found.others.get(topic, (queues, PERM_DEFAULT))
        rows.append((topic, read_queues, queues, perm))
    if output == "json":
        for topic, read_queues, queues, perm in rows:
            print_json({"topic": topic, "queues": queues, "read_queues": read_queues, "perm": perm})
        return
    shown = [(topic, read, write, shown_perm(perm)) for topic, read, write, perm in rows]
    print_table(("topic", "read queues", "write queues", "perm"), shown)


def _topics(store: Path | None, endpoint: str | None, timeout: float) -> TopicList:
    from penstock.client.sending.producer import Producer
    from penstock.shared.errors import NotRunning
    from penstock.shared.layout import StorePaths
    from penstock.shared.store.topics import load_topics

    broker = broker_of(store, endpoint, "producers")
    try:
        with Producer(**broker, timeout_ms=int(timeout * 1000)) as producer:
            return producer.list_topics(timeout)
    except NotRunning:
        paths = StorePaths(broker["store"])
        if not paths.commit_log.is_dir():
            raise
        topics = load_topics(paths.topics)
        return TopicList(0, topics.all(), topics.others())


@topics.command(
    "create",
    epilog="""\b
Examples:
  penstock topics create orders --queues 8 --store ./store
""",
)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--queues",
    type=QUEUES,
    default=4,
    show_default=True,
    help="How many it has then; more than it had, or as many.",
)
@timeout_option
@broker_options
@output_option
def create(
    topic: str,
    queues: int,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Create a topic, or give it more queues, never fewer: see `penstock topics update`."""
    from penstock.client.sending.producer import Producer

    broker, timeout_ms = broker_of(store, endpoint, "producers"), int(timeout * 1000)
    with progress("creating"), Producer(**broker, timeout_ms=timeout_ms) as producer:
        count = producer.create_topic(topic, queues, timeout)
    if output == "json":
        print_json({"topic": topic, "queues": count})
    else:
        click.echo(f"topic {topic} has {count} {'queue' if count == 1 else 'queues'}")


for command in (describe, update, rm):
    topics.add_command(command)
