"""Topics, groups and dead letters, a page at a time. Asks nobody, and writes nothing.

Lag is counted against what the queues hold: expired messages are not lag. An unknown number is
None. A view that goes over many queues pauses after each.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from penstock.actors.monitor.reading import Reading, Steps
from penstock.shared.errors import GroupNotFound, InvalidArgument, StoreDamaged, TopicNotFound
from penstock.shared.messaging.system_topics import is_system_topic
from penstock.shared.names import DLQ_PREFIX, RETRY_PREFIX, check_topic
from penstock.shared.next_steps import did_you_mean
from penstock.shared.store.topics import Topics

PAGE_ROWS, MOST_ROWS = 50, 200
# The most queues in a page of groups that are asked for the age of their oldest message.
MOST_AGES = 2000
# The most groups that a topic names; a page of groups has the others.
FIRST_GROUPS = 20
# (topic, queue) -> how far a group is there
Offsets = dict[tuple[str, int], int]
_Row = TypeVar("_Row")


class Page(NamedTuple):
    """Which rows are asked for."""

    search: str = ""
    number: int = 1
    rows: int = PAGE_ROWS
    order: str = "name"
    everything: bool = False


def page_of(query: dict[str, str]) -> Page:
    """The page that a query asks for. Raises InvalidArgument."""

    def number(key: str, default: int, most: int) -> int:
        text = query.get(key, str(default))
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
            raise InvalidArgument(f"{key} is not a number from 1 to {most}", text[:40])
        return int(text)

    order = query.get("order", "name")
    if order not in ("name", "messages", "lag"):
        raise InvalidArgument("rows have no such order", order[:40], "name, messages or lag")
    rows = number("rows", PAGE_ROWS, MOST_ROWS)
    everything = query.get("all", "") not in ("", "0")
    return Page(query.get("search", ""), number("page", 1, 1 << 20), rows, order, everything)


def _answer(page: Page, rows: list[dict[str, Any]], total: int) -> dict[str, Any]:
    return {"total": total, "page": page.number, "rows_a_page": page.rows, "rows": rows}


def _cut(page: Page, found: list[_Row]) -> list[_Row]:
    return found[(page.number - 1) * page.rows : page.number * page.rows]


def _is_shown(topic: str, page: Page) -> bool:
    own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or is_system_topic(topic)
    return page.search in topic and (page.everything or not own)


def list_topics(reading: Reading, page: Page) -> Steps:
    """A page of topics. Raises StoreDamaged if the file of topics cannot be read, because the
    topics that have messages are not all of them."""
    names = [name for name in known_topics(reading) if _is_shown(name, page)]
    if page.order == "messages":
        ever = {}
        for name in names:
            ever[name] = stored_in(reading, name)[1]
            yield
        names.sort(key=lambda name: (-ever[name], name))
    settings = reading.topic_settings()
    rows = [topic_row(reading, name, settings) for name in _cut(page, names)]
    return _answer(page, rows, len(names))


def known_topics(reading: Reading) -> list[str]:
    """The names of all topics. Raises StoreDamaged."""
    found = reading.topic_names()
    if found is None:
        raise StoreDamaged("the file of topics cannot be read", reading.paths.topics)
    return found


def check_known(reading: Reading, topic: str) -> str:
    """The topic, unless it is known not to exist. Raises InvalidArgument, TopicNotFound."""
    names = reading.topic_names()
    check_topic(topic)
    if names is not None and topic not in names:
        hint = did_you_mean(topic, set(names))
        raise TopicNotFound("there is no topic of this name", topic, hint)
    return topic


def topic_row(reading: Reading, topic: str, settings: Topics) -> dict[str, Any]:
    stored, ever = stored_in(reading, topic)
    queues = _queue_count(reading, topic, settings)
    return {"topic": topic, "queues": queues, "messages": stored, "messages_ever": ever}


def stored_in(reading: Reading, topic: str) -> tuple[int, int]:
    """How many messages the topic holds, and how many it has had."""
    ranges = [reading.queues.range(slot) for slot in reading.queues.queues(topic).values()]
    return sum(high - low for low, high in ranges), sum(high for _, high in ranges)


def _queue_count(reading: Reading, topic: str, settings: Topics) -> int:
    """Its read queues by its settings, or more if queues past them have had a message."""
    found = settings.get(topic)
    of_messages = (queue_id + 1 for queue_id in reading.queues.queues(topic))
    return max(found.read_queues if found else 0, *of_messages, 0)


def describe_topic(reading: Reading, topic: str, page: Page) -> dict[str, Any]:
    """A page of its queues, filtered by `search` in their numbers, and its first groups.

    Raises TopicNotFound, StoreDamaged, OSError."""
    known_topics(reading)
    check_known(reading, topic)
    settings = reading.topic_settings()
    config, count = settings.get(topic), _queue_count(reading, topic, settings)
    found = [queue_id for queue_id in range(count) if page.search in str(queue_id)]
    queues = []
    for queue_id in _cut(page, found):
        low, high = reading.lag.range(topic, queue_id)
        queues.append({"queue": queue_id, "min_offset": low, "max_offset": high})
    groups = reading.groups_of(topic)
    return (
        topic_row(reading, topic, settings)
        | {
            "write_queues": config.write_queues if config else None,
            "groups": None if groups is None else groups[:FIRST_GROUPS],
            "group_count": None if groups is None else len(groups),
        }
        | _answer(page, queues, len(found))
    )


def list_groups(reading: Reading, page: Page, topic: str = "") -> Steps:
    """A page of all groups, or of a topic's. Raises StoreDamaged if the groups' files cannot be
    read: then their number is not 0, but unknown."""
    names = [name for name in known_groups(reading) if page.search in name]
    if topic:
        of = set(reading.groups_of(topic) or ())
        names = [name for name in names if name in of]
    offsets = reading.group_offsets() or {}
    if page.order == "lag":
        lags = {}
        for name in names:
            lags[name] = lag_of(reading, offsets.get(name)) or 0
            yield
        names.sort(key=lambda name: (-lags[name], name))
    ages = MOST_AGES
    rows = []
    for group in _cut(page, names):
        queues = offsets.get(group, {})
        ages -= len(queues)
        rows.append(
            {
                "group": group,
                "topics": len({topic for topic, _ in queues}),
                "queues": len(queues),
                "lag": lag_of(reading, queues),
                "lag_ms": (yield from _oldest_ms(reading, queues)) if ages >= 0 else None,
            }
        )
    return _answer(page, rows, len(names))


def known_groups(reading: Reading) -> list[str]:
    """The names of all groups. Raises StoreDamaged."""
    found = reading.group_names()
    if found is None:
        raise StoreDamaged("the files of consumer groups cannot be read", reading.paths.root)
    return found


def lag_of(reading: Reading, queues: Offsets | None) -> int | None:
    """The sum of the group's lag over its queues, in messages; None if it has no offset."""
    if not queues:
        return None
    return sum(reading.lag.messages(*key, offset) for key, offset in queues.items())


def _oldest_ms(reading: Reading, queues: Offsets) -> Generator[None, None, int | None]:
    """The age of the oldest message that is not done; None if one of the queues' is unknown."""
    now_ms, ages = reading.clock.now_ms(), []
    for key, offset in queues.items():
        ages.append(reading.lag.age_ms(*key, offset, now_ms))
        yield
    return max(ages) if ages and min(ages) >= 0 else None


def describe_group(reading: Reading, group: str, page: Page) -> Steps:
    """A page of its queues, filtered by `search` in topic names: each one's lag, in messages,
    bytes and ms. Raises GroupNotFound, StoreDamaged."""
    if group not in (names := known_groups(reading)):
        hint = did_you_mean(group, set(names))
        raise GroupNotFound("there is no consumer group of this name", group, hint)
    queues = (reading.group_offsets() or {}).get(group, {})
    found = sorted(key for key in queues if page.search in key[0])
    if page.order == "lag":
        found.sort(key=lambda at: -reading.lag.messages(at[0], at[1], queues[at]))
    now_ms, rows = reading.clock.now_ms(), []
    for topic, queue_id in _cut(page, found):
        offset = queues[topic, queue_id]
        low, high = reading.lag.range(topic, queue_id)
        age_ms, size = reading.lag.of(topic, queue_id, offset, now_ms)
        rows.append(
            {
                "topic": topic,
                "queue": queue_id,
                "offset": offset,
                "min_offset": low,
                "max_offset": high,
                "lag": reading.lag.messages(topic, queue_id, offset),
                "lag_bytes": size if size >= 0 else None,
                "lag_ms": age_ms if age_ms >= 0 else None,
            }
        )
        yield
    of_all = {"group": group, "queues": len(queues), "lag": lag_of(reading, queues)}
    return of_all | _answer(page, rows, len(found))


def list_dead_letters(reading: Reading, page: Page) -> dict[str, Any]:
    """Groups that have had dead letters, and how many are still there. Raises StoreDamaged."""
    topics = _dead_letter_topics(known_topics(reading))
    topics = [name for name in topics if page.search in name.removeprefix(DLQ_PREFIX)]
    settings = reading.topic_settings()
    rows = [
        {"group": topic.removeprefix(DLQ_PREFIX)} | topic_row(reading, topic, settings)
        for topic in _cut(page, topics)
    ]
    return _answer(page, rows, len(topics))


def count_dead_letters(reading: Reading) -> int | None:
    """The dead letters of all groups; None if the file of topics cannot be read."""
    names = reading.topic_names()
    if names is None:
        return None
    return sum(stored_in(reading, name)[0] for name in _dead_letter_topics(names))


def _dead_letter_topics(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(DLQ_PREFIX)]
