"""`penstock cheat`: the most used commands, by task, with a topic that exists."""

from __future__ import annotations

import shlex

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.printing.output import heading, output_option, print_json

# task -> (command, purpose); TOPIC and GROUP stand for names
CHEATS: dict[str, list[tuple[str, str]]] = {
    "start": [
        ("penstock up --store ./store", "a broker, in the foreground"),
        ("penstock doctor", "whether this machine has what is needed"),
        ("penstock status", "how far each actor is"),
        ("penstock context add here --store ./store --use", "say once which broker is meant"),
    ],
    "send": [
        ("penstock topics create TOPIC --queues 8", "a topic"),
        ("echo hello | penstock produce TOPIC", "a message for each line"),
        ("penstock produce TOPIC --key order-17 < one.json", "found again by its key"),
    ],
    "read": [
        ("penstock tail TOPIC", "the newest, and what comes"),
        ("penstock consume TOPIC --from -15m", "the last quarter of an hour"),
        ("penstock consume TOPIC --template '%p/%o %k: %s\\n'", "place, keys and body of each"),
        ("penstock consume TOPIC --select .customer.name", "a part of JSON bodies"),
        ("penstock query key TOPIC order-17", "by key"),
        ("penstock trace order-17", "what became of a message"),
    ],
    "groups": [
        ("penstock groups ls", "members and lag"),
        ("penstock groups describe GROUP", "each queue: who has it, how far it is"),
        ("penstock groups reset GROUP TOPIC --to -1h --dry-run", "what it would do again"),
        ("penstock dlq ls", "dead letters"),
        ("penstock dlq resend GROUP", "have them come once more"),
    ],
    "stores": [
        ("penstock store verify ./store", "whether it is whole"),
        (
            "penstock store export ./store TOPIC --out TOPIC.parquet",
            "a file for pandas or DuckDB",
        ),
        ("penstock store diff ./store ./other", "what differs"),
        ("penstock recovery show", "what starts after a crash have found"),
        ("penstock debug-bundle", "all that somebody needs who is to help"),
    ],
}


@click.command(
    epilog="""\b
Examples:
  penstock cheat
  penstock cheat read
"""
)
@click.argument("task", required=False, type=click.Choice(list(CHEATS)))
@output_option
@click.pass_context
def cheat(ctx: click.Context, task: str | None, output: str) -> None:
    """Show the commands that are used most: for a TASK, or for all.

    The topic in them is one that there is, so that they run as they are printed.
    """
    topics = topic_names(ctx, ctx.command.params[0], "")
    topic = topics[0] if topics else "orders"
    for name in [task] if task else CHEATS:
        rows = [(_named(command, topic), what) for command, what in CHEATS[name]]
        if output == "json":
            for command, what in rows:
                print_json({"task": name, "command": command, "for": what})
            continue
        click.echo(heading(name))
        for command, what in rows:
            click.echo(f"  {command}\n      {what}")


def _named(command: str, topic: str) -> str:
    """The command with names quoted, because a topic's name may have characters of the shell's."""
    return command.replace("TOPIC", shlex.quote(topic)).replace("GROUP", "billing")
