"""`penstock consume --group`: a member of a group that prints messages and acknowledges them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.streams import READER_LOOK_S, check_reader
from penstock.shared.errors import UnreadableBody

if TYPE_CHECKING:
    from penstock.client.core.message import Message
    from penstock.client.groups.admin import GroupAdmin

# If nothing comes for this long, the broker is asked whether all is done.
QUIET_S = 0.3
MOST_AT_ONCE = 1000


def print_as_member(
    where: dict[str, Any],
    group: str,
    topic: str,
    start: str,
    most: int | None,
    follow: bool,
    tags: str,
    sql: str,
    show: Callable[[Message], None],
) -> int:
    """Print and acknowledge until the group has done the whole topic, or until stopped. Returns how
    many bodies could not be read."""
    from penstock.client.groups.admin import GroupAdmin
    from penstock.client.groups.consumer import GroupConsumer

    if not follow:
        _check_topic(where, topic)
    unreadable = shown = 0
    named = {key: where[key] for key in ("endpoint", "store") if key in where}
    with (
        GroupConsumer(
            **where, group=group, topics=topic, start=start, tags=tags, sql=sql
        ) as member,
        GroupAdmin(**named, timeout_ms=where["timeout_ms"]) as admin,
    ):
        while shown != most:
            left = MOST_AT_ONCE if most is None else min(MOST_AT_ONCE, most - shown)
            batch = member.poll(READER_LOOK_S if follow else QUIET_S, left)
            check_reader()
            if not batch and not follow and _is_done(admin, group, topic):
                break
            for message in batch:
                try:
                    show(message.message)
                except UnreadableBody as error:
                    unreadable += 1
                    click.echo(f"{message.message.message_id}: {error}", err=True)
                shown += 1
            # flushed before the commit: what is not written is not handled
            sys.stdout.flush()
            if batch:
                member.commit()
    return unreadable


def _check_topic(where: dict[str, Any], topic: str) -> None:
    """Raise if there is no such topic, or it may not be read: a member would wait for ever."""
    from penstock.client.reading.consumer import Consumer

    with Consumer(**where, topic=topic, follow=False) as consumer:
        consumer.poll(None)


def _is_done(admin: GroupAdmin, group: str, topic: str) -> bool:
    """Whether the group, with all its members, has nothing left in the topic."""
    queues = [queue for queue in admin.describe(group).queues if queue.topic == topic]
    return bool(queues) and all(queue.offset >= queue.max_offset for queue in queues)
