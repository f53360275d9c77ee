"""What a consumer chooses of a topic: tags or an SQL92 filter, checked before anybody is asked.

The broker looks through the queues. Its comparison of tags is one of hash codes, so the tags
themselves are compared here. No sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.message import Message
from penstock.shared import messages
from penstock.shared.errors import FilterError
from penstock.shared.layout import check_group
from penstock.shared.subscription import SQL92, TAG, TagFilter, parse_filter


class Choice(NamedTuple):
    """One consumer's filter. `tags` is None for SQL92, which the broker alone decides."""

    expression_type: str
    expression: str
    tags: TagFilter | None
    group: str
    version: int

    def subscription(self, ends: Mapping[int, int]) -> messages.Subscription:
        """For a pull that looks no further than `ends`."""
        return messages.Subscription(
            self.expression_type, self.expression, dict(ends), self.group, self.version
        )

    def pick(self, found: list[Message]) -> list[Message]:
        """Those of the broker's messages that really match."""
        tags = self.tags
        return found if tags is None else [each for each in found if tags.matches(each.tags)]


def choose(tags: str, sql: str, group: str, now_ms: int) -> Choice | None:
    """The consumer's choice; None for all messages. Raises FilterError and InvalidMessage."""
    if group:
        check_group(group)
    if not sql:
        found = parse_filter(TAG, tags)
        return Choice(TAG, tags, found, group, now_ms) if isinstance(found, TagFilter) else None
    if tags:
        raise FilterError(
            "a consumer filters by tags or by SQL92",
            f"tags={tags[:40]!r} and sql={sql[:40]!r}",
            "name the tags in the SQL92 filter: TAGS IN ('TagA', 'TagB')",
        )
    parse_filter(SQL92, sql)
    return Choice(SQL92, sql, None, group, now_ms)
