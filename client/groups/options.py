"""Makes what its core needs from the arguments of a group consumer. Pure: the time is passed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.client.core.arguments import (
    check_at_least,
    check_bool,
    check_text,
    shown,
    wrong_type,
)
from penstock.client.core.groups.member_core import Settings
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.strategies import Strategy, strategy_of
from penstock.client.core.selection import Selection, choose
from penstock.client.core.start import StartAt, parse_start
from penstock.shared.errors import InvalidArgument
from penstock.shared.filters.message_filter import SQL92, TAG
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.names import check_group, check_topic
from penstock.shared.wire.group_messages import (
    MOST_NAME,
    MOST_SESSION_MS,
    StartRule,
    SubscriptionData,
)

MIN_SESSION_MS = 1000
# The least values of a member's settings.
_LEAST = {
    "max_messages": 1,
    "max_bytes": 1,
    "max_span": 1,
    "commit_ms": 1,
    "suspend_ms": 0,
    "max_times": 0,
    "consume_timeout_ms": 1,
}
# Those that may be None, and then the group's settings count.
_OF_GROUP = ("max_times", "consume_timeout_ms")


class Sql(NamedTuple):
    """An SQL92 condition on properties, for a subscription; a plain str means tags."""

    condition: str


Topics = str | Iterable[str] | Mapping[str, str | Sql]
GroupStart = str | int | dt.datetime


class GroupOptions(NamedTuple):
    """What a member is to be, and which messages of each topic it wants."""

    member: MemberOptions
    settings: Settings
    selections: dict[str, Selection | None]
    start: StartAt


def check_topics(topics: Topics, tags: str, sql: str) -> dict[str, str | Sql]:
    """Each topic with its tags or its condition. Raises InvalidArgument."""
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        if tags or sql:
            raise InvalidArgument(
                "tags or sql are given beside a mapping of topics",
                tags or sql,
                'say it for each topic: topics={"orders": "TagA || TagB", "bills": Sql("a > 3")}',
            )
        found = dict(topics)
    elif isinstance(topics, Iterable):
        found = {topic: Sql(sql) if sql else tags for topic in topics}
    else:
        raise wrong_type(InvalidArgument, "topics", topics, "a topic, or a list of such")
    if not found:
        raise InvalidArgument("no topic is named", "topics=[]", 'name one: topics="orders"')
    for topic in found:
        check_topic(check_text("a topic", topic))
    return found


def parse_group_start(start: GroupStart, now_ms: int) -> tuple[StartRule, int]:
    """Where the group begins in queues without an offset: the rule, and its time in ms, if any."""
    if start in ("last", "latest"):
        return "last", 0
    if start in ("first", "earliest"):
        return "first", 0
    try:
        at = parse_start(start, now_ms)
    except InvalidArgument as error:
        raise InvalidArgument(error.what, error.value, _START) from None
    if at.at_ms < 0:
        raise InvalidArgument("a group cannot begin at one offset", start, _START)
    return "timestamp", at.at_ms


def check_client_id(client_id: Any) -> str:
    """A member's client id, checked; "" lets the member make one. Raises InvalidArgument."""
    name = check_text("client_id", client_id)
    if set(name) & set("/\\\0") or name in (".", ".."):
        raise InvalidArgument("the client id cannot be part of a path", shown(name))
    if len(name) > MOST_NAME or not name.isprintable():
        raise InvalidArgument(
            f"the client id is longer than {MOST_NAME} characters, or some are not printed",
            shown(name),
        )
    return name


_START = 'write "last", "first", a time (2026-01-02T03:04), or how long ago (-15m)'


def group_options(
    group: str,
    topics: Topics,
    *,
    client_id: str,
    tags: str,
    sql: str,
    start: GroupStart,
    broadcasting: bool,
    strategy: str | Strategy,
    orderly: bool,
    session_timeout_ms: int,
    settings: Settings,
    now_ms: int,
) -> GroupOptions:
    """All options, checked. Raises InvalidArgument and FilterError."""
    check_group(check_text("group", group))
    for name, least in _LEAST.items():
        if (value := getattr(settings, name)) is not None or name not in _OF_GROUP:
            check_at_least(name, value, least)
    chosen = check_topics(topics, tags, sql)
    if not check_bool("broadcasting", broadcasting):
        # Always all of it, whatever the program says: a retry that a filter left out would be lost.
        chosen[retry_topic(group)] = "*"
    subscriptions, selections = [], {}
    for topic, wanted in chosen.items():
        kind, text = (SQL92, wanted.condition) if isinstance(wanted, Sql) else (TAG, wanted)
        text = check_text(f"the tags of {topic}", text)
        selections[topic] = (
            choose("", text, group, now_ms) if kind == SQL92 else choose(text, "", "", now_ms)
        )
        subscriptions.append(SubscriptionData(topic, kind, text or "*", now_ms))
    rule, at_ms = parse_group_start(start, now_ms)
    member = MemberOptions(
        group,
        client_id,
        tuple(subscriptions),
        strategy_of(strategy),
        check_at_least("session_timeout_ms", session_timeout_ms, MIN_SESSION_MS, MOST_SESSION_MS),
        "broadcasting" if broadcasting else "clustering",
        rule,
        at_ms,
        check_bool("orderly", orderly),
    )
    begin = {"last": StartAt(latest=True), "first": StartAt()}.get(rule, StartAt(at_ms=at_ms))
    return GroupOptions(member, settings, selections, begin)
