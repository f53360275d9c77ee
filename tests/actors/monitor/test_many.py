"""2,000 topics and 2,000 groups: pages of them are whole, in order, and cost a bounded time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.monitor.exposition import MOST_SERIES
from penstock.actors.monitor.history import History
from penstock.actors.monitor.http_messages import Request
from penstock.actors.monitor.reading import Reading, at_once
from penstock.actors.monitor.routes import SLICE_MS, Routes
from penstock.actors.monitor.topics import FIRST_GROUPS
from penstock.shared.clock import SystemClock
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable

TOPICS, QUEUES, WIDE = 2000, 4, 1024
# a hang, and not a slow machine, reaches this
BOUND_S = 60


class SlowClock(SystemClock):
    """Each look at it takes `step_ms`: what is done between two looks is that slow."""

    step_ms = passed_ms = 0

    def monotonic_ms(self) -> int:
        self.passed_ms += self.step_ms
        return super().monotonic_ms() + self.passed_ms


@pytest.fixture
def clock() -> SlowClock:
    return SlowClock()


@pytest.fixture
def config(make_config: Callable[..., Any]) -> Any:
    return make_config(max_queues=TOPICS * QUEUES + WIDE)


@pytest.fixture
def routes(clock: SlowClock, config: Any, make_run: Callable[..., Any]) -> Iterator[Routes]:
    """Topic n has n messages in each queue, of which group n has had half."""
    run = make_run(config)
    folder = config.store / "config"
    folder.mkdir(parents=True)
    (config.store / "commitlog").mkdir()
    table = QueueTable(run.queues, writable=True)
    entries, offsets = {}, {}
    for number in range(TOPICS):
        topic = f"topic-{number:04}"
        entries[topic] = {"topicName": topic, "writeQueueNums": QUEUES, "readQueueNums": QUEUES}
        offsets[f"{topic}@group-{number:04}"] = {str(q): number // 2 for q in range(QUEUES)}
        for queue_id in range(QUEUES):
            table.add(number * QUEUES + queue_id, QueueKey(topic, queue_id), 0, number)
    for queue_id in range(WIDE):
        table.add(TOPICS * QUEUES + queue_id, QueueKey("wide", queue_id), 0, queue_id)
    table.close()
    (folder / "topics.json").write_text(json.dumps({"topicConfigTable": entries}))
    (folder / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    reput = Positions(run.positions, owner="reput")
    reput.publish("queue_count", TOPICS * QUEUES + WIDE)
    reput.close()
    positions = Positions(run.positions)
    reading = Reading(config, run, positions, clock)
    yield Routes(reading, History(), pytest.fail)
    reading.close()
    positions.close()


@pytest.fixture
def crowded(config: Any) -> None:
    """A group is in every topic, and every group in the one of many queues."""
    none = {str(queue_id): 0 for queue_id in range(QUEUES)}
    offsets = {f"topic-{n:04}@everywhere": none for n in range(TOPICS)}
    offsets |= {f"wide@group-{n:04}": {str(n % WIDE): 0} for n in range(TOPICS)}
    offsets["wide@everywhere"] = {str(q): 0 for q in range(WIDE)}
    file = config.store / "config" / "consumerOffset.json"
    file.write_text(json.dumps({"offsetTable": offsets}))


@pytest.fixture
def ask(routes: Routes) -> Any:
    def asked(path: str, **query: str) -> Any:
        answer = at_once(routes.answer(Request("GET", path, query, keeps_open=True)))
        assert answer.status == 200, answer.body
        return answer.body.decode() if path == "/metrics" else json.loads(answer.body)

    return asked


def test_every_page_of_topics_and_groups_is_there(ask: Any) -> None:
    names = [
        row["topic"]
        for page in range(1, 12)
        for row in ask("/api/topics", page=str(page), rows="200")["rows"]
    ]
    assert names == [*(f"topic-{number:04}" for number in range(TOPICS)), "wide"]
    most = ask("/api/groups", order="lag")
    assert most["total"] == TOPICS
    assert most["rows"][0]["group"] == "group-1999"
    assert most["rows"][0]["lag"] == QUEUES * 1000
    # the queues have no files here, so how old a message is cannot be known
    assert most["rows"][0]["lag_ms"] is None
    (one,) = ask("/api/topics", search="1234")["rows"]
    assert one["messages"] == QUEUES * 1234


def test_queues_of_a_topic_and_of_a_group_come_a_page_at_a_time(ask: Any, crowded: None) -> None:
    found = [ask("/api/topic", name="wide", page=str(page), rows="200") for page in range(1, 8)]
    assert [row["queue"] for each in found for row in each["rows"]] == list(range(WIDE))
    assert {each["total"] for each in found} == {WIDE} and len(found[0]["rows"]) == 200
    assert [row["queue"] for row in ask("/api/topic", name="wide", search="102")["rows"]] == [
        *(102, *range(1020, 1024))
    ]
    lags = ask("/api/group", name="everywhere")
    assert (lags["total"], len(lags["rows"])) == (TOPICS * QUEUES + WIDE, 50) and lags["lag"] > 0
    (one, *_) = ask("/api/group", name="everywhere", order="lag")["rows"]
    assert (one["topic"], one["lag"]) == ("topic-1999", 1999)
    of_one = ask("/api/group", name="everywhere", search="topic-1234")
    assert [row["queue"] for row in of_one["rows"]] == list(range(QUEUES))
    assert (of_one["total"], of_one["queues"]) == (QUEUES, TOPICS * QUEUES + WIDE)


def test_a_topic_names_some_of_its_groups_and_pages_of_groups_have_all(
    ask: Any, crowded: None
) -> None:
    topic = ask("/api/topic", name="wide")
    assert topic["group_count"] == TOPICS + 1 and topic["groups"][0] == "everywhere"
    assert len(topic["groups"]) == FIRST_GROUPS
    assert ask("/api/groups", topic="wide")["total"] == TOPICS + 1
    assert [row["group"] for row in ask("/api/groups", topic="topic-0007")["rows"]] == [
        "everywhere"
    ]
    assert ask("/api/groups", topic="topic-7777")["total"] == 0


@pytest.mark.parametrize(
    ("path", "query", "steps"),
    [
        ("/api/groups", {"order": "lag", "rows": "200"}, TOPICS + 200 * QUEUES),
        ("/api/topics", {"order": "messages"}, TOPICS),
    ],
)
def test_what_takes_long_is_done_in_turns(
    routes: Routes, clock: SlowClock, path: str, query: dict[str, str], steps: int
) -> None:
    """Else the monitor would not beat meanwhile, and be replaced."""
    clock.step_ms = 5
    answering = routes.answer(Request("GET", path, query, keeps_open=True))
    pauses = -1
    ended = False
    while not ended:
        began_ms, pauses = clock.passed_ms, pauses + 1
        try:
            next(answering)
        except StopIteration:
            ended = True
        assert clock.passed_ms - began_ms < 200
    assert pauses > steps * clock.step_ms // SLICE_MS - 10


def test_a_queue_that_cannot_be_read_hides_no_other(ask: Any) -> None:
    rows = ask("/api/message", topic="topic-1999", time="1")["rows"]
    assert [row["queue"] for row in rows] == list(range(QUEUES))
    assert all("No such file" in row["error"] for row in rows), "the queues have no files here"


def test_metrics_of_thousands_are_bounded_and_say_what_they_leave_out(ask: Any) -> None:
    text = ask("/metrics")
    for name, of, count in (
        ("topic_messages_total", "topics", TOPICS + 1),
        ("group_lag_messages", "groups", TOPICS),
    ):
        assert text.count(f"\npenstock_{name}{{") == MOST_SERIES
        assert f'penstock_series_left_out{{of="{of}"}} {count - MOST_SERIES}\n' in text


def test_a_page_takes_no_time_to_speak_of(ask: Any, crowded: None) -> None:
    """Figures are printed; the bound is one that only a hang reaches."""
    began_s = time.monotonic()
    for path, query in (
        ("/api/overview", {}),
        ("/api/topics", {}),
        ("/api/topics", {"order": "messages", "page": "40"}),
        ("/api/topics", {"search": "1"}),
        ("/api/topic", {"name": "topic-1999"}),
        ("/api/groups", {}),
        ("/api/groups", {"order": "lag", "page": "40"}),
        ("/api/group", {"name": "group-1999"}),
        ("/api/dead-letters", {}),
        ("/api/files", {}),
        ("/api/topic", {"name": "wide"}),
        ("/api/group", {"name": "everywhere"}),
        ("/api/group", {"name": "everywhere", "order": "lag"}),
        ("/api/groups", {"topic": "wide", "order": "lag"}),
        ("/metrics", {}),
    ):
        for turn in ("first", "again"):
            at_s = time.monotonic()
            ask(path, **query)
            words = " ".join((path, *map("=".join, query.items()), turn))
            print(f"{words:<60} {(time.monotonic() - at_s) * 1000:8.1f} ms")
    assert time.monotonic() - began_s < BOUND_S
