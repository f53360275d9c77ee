"""`penstock topics`: what topics there are, and a new one."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.endpoints import broker_of, broker_options
from penstock.cli.option_types import QUEUES, timeout_option
from penstock.cli.output import output_option, print_json, print_table, progress
from penstock.cli.suggestions import Group


@click.group(cls=Group)
def topics() -> None:
    """List and create topics."""


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
@output_option
def ls(timeout: float, store: Path | None, endpoint: str | None, output: str) -> None:
    """All topics and how many queues each has; of a stopped store too."""
    with progress("asking"):
        found = _topics(store, endpoint, timeout)
    if output == "json":
        for topic, queues in found.items():
            print_json({"topic": topic, "queues": queues})
        return
    print_table(("topic", "queues"), list(found.items()))


def _topics(store: Path | None, endpoint: str | None, timeout: float) -> dict[str, int]:
    from penstock.client.producer import Producer
    from penstock.shared.config_sources import default_store
    from penstock.shared.layout import StorePaths
    from penstock.shared.process.find_broker import NotRunning
    from penstock.shared.store.topics import load_topics

    try:
        timeout_ms = int(timeout * 1000)
        with Producer(**broker_of(store, endpoint), timeout_ms=timeout_ms) as producer:
            return producer.topics(timeout)
    except NotRunning:
        paths = StorePaths(store or Path(default_store()))
        if not paths.commit_log.is_dir():
            raise
        return load_topics(paths.topics).all()


@topics.command(
    "create",
    epilog="""\b
Examples:
  penstock topics create orders --queues 8 --store ./store
""",
)
@click.argument("topic")
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
    """Create a topic, or give it more queues. A topic never loses any."""
    from penstock.client.producer import Producer

    broker, timeout_ms = broker_of(store, endpoint), int(timeout * 1000)
    with progress("creating"), Producer(**broker, timeout_ms=timeout_ms) as producer:
        count = producer.create_topic(topic, queues, timeout)
    if output == "json":
        print_json({"topic": topic, "queues": count})
    else:
        click.echo(f"topic {topic} has {count} {'queue' if count == 1 else 'queues'}")
