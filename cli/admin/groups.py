"""`penstock groups`: consumer groups, their members and offsets, and setting offsets."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.completing import group_names, topic_names
from penstock.cli.options.endpoints import broker_of, broker_options
from penstock.cli.options.option_types import QUEUE_ID, timeout_option
from penstock.cli.printing.output import (
    print_json,
    print_table,
    print_text,
    progress,
    rows_alone,
    rows_option,
    shown_bytes,
)
from penstock.cli.printing.suggestions import Group
from penstock.shared.errors import GroupNotFound, InvalidArgument

if TYPE_CHECKING:
    from penstock.client.groups.admin import GroupAdmin
    from penstock.shared.wire.group_messages import GroupInfo, QueueInfo

UNKNOWN = "unknown"


@click.group(cls=Group)
def groups() -> None:
    """List, describe, reset and remove consumer groups."""


def _admin(store: Path | None, endpoint: str | None, timeout: float) -> GroupAdmin:
    from penstock.client.groups.admin import GroupAdmin

    return GroupAdmin(**broker_of(store, endpoint), timeout_ms=int(timeout * 1000))


@groups.command(
    "ls",
    epilog="""\b
Examples:
  penstock groups ls --store ./store
  penstock groups ls -o json
""",
)
@timeout_option
@broker_options
@rows_option
def ls(timeout: float, store: Path | None, endpoint: str | None, output: str) -> None:
    """All groups: how many members each has, and how many messages it has still to handle."""
    with progress("asking"), _admin(store, endpoint, timeout) as admin:
        found = admin.list()
    if output == "json":
        for group, (members, lag) in found.items():
            print_json({"group": group, "members": members, "lag": _known(lag)})
        return
    rows = [(group, members, _told(lag)) for group, (members, lag) in found.items()]
    print_table(("group", "members", "lag"), rows)


@groups.command(
    "describe",
    epilog="""\b
Examples:
  penstock groups describe billing --store ./store
  penstock groups describe billing -o json | jq .members
""",
)
@click.argument("group", shell_complete=group_names)
@timeout_option
@broker_options
@rows_option
def describe(
    group: str, timeout: float, store: Path | None, endpoint: str | None, output: str
) -> None:
    """Members, queues, offsets and lag of GROUP, and its settings.

    With -o csv and -o plain only the members; `penstock groups lag` has the queues.
    """
    info = _info(group, store, endpoint, timeout)
    if output == "json":
        print_json(_as_json(info))
        return
    print_text(f"group {group}: {_counted(len(info.members), 'member')}")
    if info.members or rows_alone():
        print_table(
            ("member", "address", "model", "seen", "subscribes to"),
            [
                (
                    member.client_id,
                    member.address,
                    ("orderly " if member.orderly else "") + member.model,
                    f"{member.seen_ms_ago / 1000:.1f} s ago",
                    ", ".join(_subscription(each) for each in member.subscriptions),
                )
                for member in info.members
            ],
        )
    if rows_alone():
        return
    _print_queues(info.queues)
    click.echo(" ".join(f"{key}={_word(value)}" for key, value in info.settings.items()))


@groups.command(
    "lag",
    epilog="""\b
Examples:
  penstock groups lag billing --store ./store
  penstock groups lag billing -o json
""",
)
@click.argument("group", shell_complete=group_names)
@timeout_option
@broker_options
@rows_option
def lag(group: str, timeout: float, store: Path | None, endpoint: str | None, output: str) -> None:
    """How far GROUP is from the end of each queue: in messages, bytes and seconds."""
    info = _info(group, store, endpoint, timeout)
    if output == "json":
        for queue in info.queues:
            print_json(_queue_json(queue))
        return
    _print_queues(info.queues)


@groups.command(
    "reset",
    epilog="""\b
Examples:
  penstock groups reset billing orders --to latest --dry-run
  penstock groups reset billing orders --to 2026-01-02T03:04 --yes
  penstock groups reset billing orders --to 100 --queue 0 --yes
""",
)
@click.argument("group", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--to",
    "to",
    required=True,
    help="earliest, latest, an offset, a time, ms since 1970, or how long ago (-15m).",
)
@click.option("--queue", "queues", type=QUEUE_ID, multiple=True, help="Only this one; repeatable.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and say what would change.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@broker_options
@rows_option
def reset(
    group: str,
    topic: str,
    to: str,
    queues: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    timeout: float,
    store: Path | None,
    endpoint: str | None,
    output: str,
) -> None:
    """Set how far GROUP is in TOPIC. Its members, if it has any, go on there at once."""
    from penstock.client.core.start import parse_start

    target = parse_start(to, int(time.time() * 1000))
    with _admin(store, endpoint, timeout) as admin:
        with progress("asking"):
            wanted = admin.targets(topic, target, frozenset(queues) or None)
            # First a dry run, because a repeated request would report its own result as "before".
            found = admin.reset(group, topic, wanted, dry_run=True)
        if output != "json":
            _print_reset(found)
        question = f"set these offsets of group {group}"
        if not dry_run and (yes or _agreed(question, "add --yes, or --dry-run to look first")):
            with progress("setting"):
                admin.reset(group, topic, wanted)
            if output != "json":
                click.echo(f"group {group} goes on there in topic {topic}", err=True)
    if output == "json":
        for queue_id, (before, after) in sorted(found.items()):
            print_json(
                {"queue": queue_id, "before": _known(before), "after": after, "dry_run": dry_run}
            )


@groups.command(
    "rm",
    epilog="""\b
Examples:
  penstock groups rm billing --yes
""",
)
@click.argument("group", shell_complete=group_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@broker_options
def rm(group: str, yes: bool, timeout: float, store: Path | None, endpoint: str | None) -> None:
    """Forget GROUP and its offsets. Refused while it has members; no message is deleted."""
    if not yes and not _agreed(f"forget group {group} and its offsets", "add --yes"):
        return
    with progress("removing"), _admin(store, endpoint, timeout) as admin:
        admin.delete(group)
    click.echo(f"group {group} is gone")


def _agreed(question: str, hint: str) -> bool:
    """Whether the person at the terminal agrees. Raises InvalidArgument if there is nobody."""
    if not sys.stdin.isatty():
        raise InvalidArgument("nobody is at a terminal to be asked", question, hint)
    return click.confirm(f"{question}?", default=False, err=True)


def _info(group: str, store: Path | None, endpoint: str | None, timeout: float) -> GroupInfo:
    """Raises GroupNotFound."""
    from penstock.shared.next_steps import did_you_mean

    with progress("asking"), _admin(store, endpoint, timeout) as admin:
        info = admin.describe(group)
        if not info.exists:
            raise GroupNotFound(
                "there is no consumer group of this name",
                group,
                did_you_mean(group, set(admin.list())),
            )
    return info


def _print_queues(queues: tuple[QueueInfo, ...]) -> None:
    columns = ("topic", "queue", "offset", "end", "lag", "bytes", "seconds", "member")
    rows = [
        (
            queue.topic,
            queue.queue_id,
            _told(queue.offset),
            queue.max_offset,
            _told(_lag(queue)),
            _told(queue.lag_bytes) if rows_alone() else _shown_bytes(queue.lag_bytes),
            f"{queue.lag_ms / 1000:.1f}" if queue.lag_ms >= 0 else UNKNOWN,
            queue.owner,
        )
        for queue in queues
    ]
    print_table(columns, rows)


def _print_reset(found: dict[int, tuple[int, int]]) -> None:
    rows = [(queue, _told(before), after) for queue, (before, after) in sorted(found.items())]
    print_table(("queue", "before", "after"), rows)


def _lag(queue: QueueInfo) -> int:
    """The lag in messages; -1 if the group has no offset. Expired messages do not count."""
    if queue.offset < 0:
        return -1
    return max(0, queue.max_offset - max(queue.offset, queue.min_offset))


def _as_json(info: GroupInfo) -> dict[str, Any]:
    return {
        "group": info.group,
        "members": [
            {
                "client_id": member.client_id,
                "address": member.address,
                "model": member.model,
                "start": member.start,
                "orderly": member.orderly,
                "seen_ms_ago": member.seen_ms_ago,
                "subscriptions": {
                    each.topic: {"type": each.expression_type, "expression": each.expression}
                    for each in member.subscriptions
                },
            }
            for member in info.members
        ],
        "queues": [_queue_json(queue) for queue in info.queues],
        "settings": info.settings,
    }


def _queue_json(queue: QueueInfo) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "queue": queue.queue_id,
        "offset": _known(queue.offset),
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "lag": _known(_lag(queue)),
        "lag_bytes": _known(queue.lag_bytes),
        "lag_ms": _known(queue.lag_ms),
        "member": queue.owner or None,
    }


def _subscription(each: Any) -> str:
    everything = each.expression_type == "TAG" and each.expression in ("*", "")
    return each.topic if everything else f"{each.topic} ({each.expression})"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _known(number: int) -> int | None:
    """For JSON: unknown is null, never 0."""
    return None if number < 0 else number


def _told(number: int) -> int | str:
    return UNKNOWN if number < 0 else number


def _shown_bytes(count: int) -> str:
    return UNKNOWN if count < 0 else shown_bytes(count)


def _word(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
