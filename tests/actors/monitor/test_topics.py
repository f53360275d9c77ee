"""Pages of topics, groups and dead letters: which rows, in which order, and what each says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.monitor import topics
from penstock.actors.monitor.reading import Reading, at_once
from penstock.actors.monitor.topics import Page, page_of
from penstock.actors.reput import Reput
from penstock.shared.errors import GroupNotFound, InvalidArgument, StoreDamaged, TopicNotFound
from penstock.shared.memory.queue_table import QueueTable


@pytest.fixture
def broker(pipeline: Callable[..., Any]) -> Any:
    return pipeline(transient_store_pool_enable=False)


@pytest.fixture
def reading(broker: Any) -> Iterator[Reading]:
    found = Reading(broker.config, broker.run, broker.positions, broker.clock)
    yield found
    found.close()


@pytest.fixture
def put(broker: Any, work: Callable[..., None]) -> Callable[..., None]:
    """Store messages in queues, a second after each other: put(("orders", 0), ...)."""
    reput: list[Any] = []

    def stored(*queues: tuple[str, int], size: int = 100) -> None:
        for topic, queue_id in queues:
            broker.append(topic=topic, queue_id=queue_id, size=size)
            broker.clock.advance(1000)
        for name in ("committed", "flushed"):
            broker.positions.initialise(name, broker.positions["wrote"])
        reput.extend([] if reput else [broker.start(Reput)])
        work(reput[0])

    return stored


def write(broker: Any, *, offsets: Any = None, settings: Any = None, groups: Any = None) -> None:
    """The files of topics, of groups, and of how far these are."""
    for path, key, table in (
        (broker.paths.consumer_offsets, "offsetTable", offsets),
        (broker.paths.topics, "topicConfigTable", settings),
        (broker.paths.subscription_groups, "subscriptionGroupTable", groups),
    ):
        if table is not None:
            path.write_text(json.dumps({key: table}))


def names(found: dict[str, Any], of: str) -> list[str]:
    return [row[of] for row in found["rows"]]


def test_which_rows_are_asked_for() -> None:
    assert page_of({}) == Page("", 1, 50, "name", False)
    words = {"search": "x", "page": "1048576", "rows": "200", "order": "lag", "all": "1"}
    assert page_of(words) == Page("x", 1 << 20, 200, "lag", True)
    assert page_of({"page": "000000002", "rows": "1", "all": "0"}) == Page(number=2, rows=1)
    for wrong in (
        {"page": "1048577"},
        {"page": "0"},
        {"page": "0000000002"},
        {"page": "1x"},
        {"page": "²"},
        {"rows": "201"},
        {"rows": "0"},
        {"order": "size"},
    ):
        with pytest.raises(InvalidArgument):
            page_of(wrong)


def test_topics_come_by_name_or_by_what_they_have_had(
    broker: Any, reading: Reading, put: Callable[..., None]
) -> None:
    put(("b", 0), ("b", 3), ("c", 0), ("d", 0), ("d", 0), ("d", 1))
    put(("%RETRY%shop", 0), ("%DLQ%shop", 0), ("rmq_sys_own", 0))
    write(broker, settings={"a": {"topicName": "a", "readQueueNums": 5, "writeQueueNums": 2}})
    found = at_once(topics.list_topics(reading, Page()))
    assert found["rows"] == [
        {"topic": "a", "queues": 5, "messages": 0, "messages_ever": 0},
        {"topic": "b", "queues": 4, "messages": 2, "messages_ever": 2},
        {"topic": "c", "queues": 1, "messages": 1, "messages_ever": 1},
        {"topic": "d", "queues": 2, "messages": 3, "messages_ever": 3},
    ]
    assert found | {"rows": 0} == {"total": 4, "page": 1, "rows_a_page": 50, "rows": 0}
    put(("c", 0))
    most = at_once(topics.list_topics(reading, Page(order="messages")))
    assert names(most, "topic") == [*"dbca"], "of as many messages by name"
    assert names(at_once(topics.list_topics(reading, Page("b"))), "topic") == ["b"]
    everything = at_once(topics.list_topics(reading, Page("s", everything=True)))
    assert names(everything, "topic") == ["%DLQ%shop", "%RETRY%shop", "rmq_sys_own"]
    page = at_once(topics.list_topics(reading, Page(number=2, rows=3)))
    assert (names(page, "topic"), page["total"], page["page"]) == (["d"], 4, 2)
    assert at_once(topics.list_topics(reading, Page("own")))["rows"] == []


def test_a_topic_has_its_settings_its_queues_and_its_first_groups(
    broker: Any, reading: Reading, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(("b", 1), ("b", 1))
    write(
        broker,
        settings={"b": {"topicName": "b", "readQueueNums": 3, "writeQueueNums": 2}},
        offsets={"b@z": {"0": 0}, "b@y": {"1": 1}, "b@x": {"0": 0}, "c@w": {"0": 0}},
    )
    monkeypatch.setattr(topics, "FIRST_GROUPS", 2)
    found = topics.describe_topic(reading, "b", Page())
    assert found == {
        "topic": "b", "queues": 3, "messages": 2, "messages_ever": 2, "write_queues": 2,
        "groups": ["x", "y"], "group_count": 3,
        "total": 3, "page": 1, "rows_a_page": 50,
        "rows": [
            {"queue": 0, "min_offset": 0, "max_offset": 0},
            {"queue": 1, "min_offset": 0, "max_offset": 2},
            {"queue": 2, "min_offset": 0, "max_offset": 0},
        ],
    }  # fmt: skip
    assert names(topics.describe_topic(reading, "b", Page("2")), "queue") == [2]
    with pytest.raises(TopicNotFound):
        topics.describe_topic(reading, "a", Page())
    with pytest.raises(InvalidArgument):
        topics.describe_topic(reading, "no/topic", Page())
    write(broker, settings={"unread": {"topicName": "unread", "readQueueNums": 0}})
    put(("unset", 0))
    broker.clock.advance(1000)  # what changes all the time is read once a second
    assert topics.describe_topic(reading, "unread", Page())["rows"] == []
    assert topics.describe_topic(reading, "unset", Page())["write_queues"] is None


def test_groups_come_by_name_or_by_what_they_have_left(
    broker: Any, reading: Reading, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(*[("a", 0)] * 3, *[("b", 2)] * 2)
    now_ms = broker.clock.now_ms()
    offsets = {
        "a@w": {"0": 3},
        "a@x": {"0": 1},
        "b@x": {"2": 0},
        "b@y": {"2": 0},
        "a@z": {"0": 1},
        "a@CID_RMQ_SYS_TRANS": {"0": 0},
    }
    write(broker, offsets=offsets, groups={"zz": {"groupName": "zz"}})
    rows = at_once(topics.list_groups(reading, Page()))["rows"]
    ages = {row["group"]: row.pop("lag_ms") for row in rows}
    assert rows == [
        {"group": "w", "topics": 1, "queues": 1, "lag": 0},
        {"group": "x", "topics": 2, "queues": 2, "lag": 4},
        {"group": "y", "topics": 1, "queues": 1, "lag": 2},
        {"group": "z", "topics": 1, "queues": 1, "lag": 2},
        {"group": "zz", "topics": 0, "queues": 0, "lag": None},
    ]
    oldest = [broker.stored("a", 0)[1], broker.stored("b", 2)[0]]
    a_ms, b_ms = (now_ms - each.store_timestamp_ms for each in oldest)
    assert ages == {"w": 0, "x": a_ms, "y": b_ms, "z": a_ms, "zz": None} and a_ms > b_ms
    by_lag = at_once(topics.list_groups(reading, Page(order="lag")))
    assert names(by_lag, "group") == ["x", "y", "z", "w", "zz"], "of equal ones by name"
    assert names(at_once(topics.list_groups(reading, Page("x"))), "group") == ["x"]
    assert names(at_once(topics.list_groups(reading, Page(), "b")), "group") == ["x", "y"]
    # the queues of the first two are all whose messages are looked at
    monkeypatch.setattr(topics, "MOST_AGES", 3)
    limited = at_once(topics.list_groups(reading, Page()))["rows"]
    assert [row["lag_ms"] for row in limited] == [0, a_ms, None, None, None]


def test_a_group_has_what_is_left_of_each_of_its_queues(
    broker: Any, reading: Reading, put: Callable[..., None]
) -> None:
    put(("a", 0), ("b", 2), ("b", 2), ("b", 3), ("a", 0), ("c", 0))
    now_ms = broker.clock.now_ms()
    offsets = {"a@x": {"0": 1}, "b@x": {"2": 0, "3": 1}, "gone@x": {"0": 7}, "c@other": {"0": 0}}
    write(broker, offsets=offsets)
    found = at_once(topics.describe_group(reading, "x", Page()))
    last, first = broker.stored("a", 0)[1], broker.stored("b", 2)[0]

    def row(*words: str | int) -> dict[str, str | int]:
        keys = ("topic", "queue", "offset", "max_offset", "lag", "lag_bytes", "lag_ms")
        return {"min_offset": 0} | dict(zip(keys, words, strict=True))

    assert found == {
        "group": "x", "queues": 4, "lag": 3, "total": 4, "page": 1, "rows_a_page": 50,
        "rows": [
            row("a", 0, 1, 2, 1, last.total_size, now_ms - last.store_timestamp_ms),
            row("b", 2, 0, 2, 2, 2 * first.total_size, now_ms - first.store_timestamp_ms),
            row("b", 3, 1, 1, 0, 0, 0),
            row("gone", 0, 7, 0, 0, 0, 0),
        ],
    }  # fmt: skip
    by_lag = at_once(topics.describe_group(reading, "x", Page(order="lag")))
    assert [(each["topic"], each["queue"]) for each in by_lag["rows"]] == [
        ("b", 2), ("a", 0), ("b", 3), ("gone", 0)
    ]  # fmt: skip
    one = at_once(topics.describe_group(reading, "x", Page("b", number=2, rows=1)))
    assert (one["total"], one["queues"], one["rows"]) == (2, 4, [row("b", 3, 1, 1, 0, 0, 0)])
    with pytest.raises(GroupNotFound):
        at_once(topics.describe_group(reading, "y", Page()))


def test_the_age_of_a_message_that_cannot_be_read_is_unknown_for_its_whole_group(
    broker: Any, reading: Reading, put: Callable[..., None]
) -> None:
    put(("a", 0), ("b", 0))
    write(broker, offsets={"a@x": {"0": 0}, "b@x": {"0": 0}, "a@y": {"0": 0}})
    for file in (broker.paths.consume_queue / "b" / "0").iterdir():
        file.unlink()
    x, y = at_once(topics.list_groups(reading, Page()))["rows"]
    assert (x["lag"], x["lag_ms"]) == (2, None) and y["lag_ms"] > 0
    a, b = at_once(topics.describe_group(reading, "x", Page()))["rows"]
    assert (b["lag"], b["lag_bytes"], b["lag_ms"]) == (1, None, None)
    assert a["lag_bytes"] > 0 and a["lag_ms"] > 0


def test_dead_letters_are_those_of_each_group_that_has_had_some(
    broker: Any, reading: Reading, put: Callable[..., None]
) -> None:
    put(("%DLQ%shop", 0), ("%DLQ%shop", 0), ("%DLQ%bar", 0), ("%RETRY%shop", 0), ("a", 0))
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(0, 1)
    table.close()
    found = topics.list_dead_letters(reading, Page())
    assert found == {
        "total": 2, "page": 1, "rows_a_page": 50,
        "rows": [
            {"group": "bar", "topic": "%DLQ%bar", "queues": 1, "messages": 1, "messages_ever": 1},
            {"group": "shop", "topic": "%DLQ%shop", "queues": 1, "messages": 1, "messages_ever": 2},
        ],
    }  # fmt: skip
    assert names(topics.list_dead_letters(reading, Page("o")), "group") == ["shop"]
    assert topics.list_dead_letters(reading, Page("DLQ"))["rows"] == [], "it is no group's name"
    assert topics.count_dead_letters(reading) == 2


def test_what_files_that_cannot_be_read_would_say_is_unknown(
    broker: Any, reading: Reading, put: Callable[..., None]
) -> None:
    put(("a", 0))
    for path in (broker.paths.topics, broker.paths.subscription_groups):
        path.write_text("{")
    assert topics.count_dead_letters(reading) is None
    assert topics.check_known(reading, "anything") == "anything", "there may be one of this name"
    for look in (
        lambda: topics.list_dead_letters(reading, Page()),
        lambda: topics.describe_topic(reading, "a", Page()),
        lambda: at_once(topics.list_topics(reading, Page())),
        lambda: at_once(topics.list_groups(reading, Page())),
        lambda: at_once(topics.describe_group(reading, "x", Page())),
    ):
        with pytest.raises(StoreDamaged):
            look()
