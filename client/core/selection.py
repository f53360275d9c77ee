"""Which messages of a topic a consumer wants: tags or an SQL92 filter, checked before any request.

The broker filters the queues. It compares only the hash codes of tags, so the tags themselves are
compared here. No sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.core.arguments import check_text
from penstock.client.core.message import Message
from penstock.shared.errors import FilterError
from penstock.shared.filters.message_filter import SQL92, TAG, Filter, parse_filter
from penstock.shared.names import check_group
from penstock.shared.wire import messages


class Selection(NamedTuple):
    """One consumer's filter."""

    expression_type: str
    expression: str
    filter: Filter
    group: str
    version: int

    def subscription(self, ends: Mapping[int, int]) -> messages.Subscription:
        """The subscription of a pull that looks no further than `ends`."""
        return messages.Subscription(
            self.expression_type, self.expression, dict(ends), self.group, self.version
        )

    def pick(self, found: list[Message]) -> list[Message]:
        """The messages from the broker that really match."""
        if self.filter.decided_by_broker:
            return found
        return [message for message in found if self.filter.matches(message.record)]


def choose(tags: str, sql: str, group: str, now_ms: int) -> Selection | None:
    """The consumer's selection; None for all messages. Raises FilterError and InvalidArgument."""
    tags, sql, group = check_text("tags", tags), check_text("sql", sql), check_text("group", group)
    if group:
        check_group(group)
    if tags and sql:
        raise FilterError(
            "both tags and an SQL92 filter are given",
            f"tags={tags[:40]!r} and sql={sql[:40]!r}",
            "name the tags in the SQL92 filter: TAGS IN ('TagA', 'TagB')",
        )
    kind, expression = (SQL92, sql) if sql else (TAG, tags)
    found = parse_filter(kind, expression)
    return None if found is None else Selection(kind, expression, found, group, now_ms)
