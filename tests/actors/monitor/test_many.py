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
from penstock.shared.clock import SystemClock
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable

TOPICS, QUEUES = 2000, 4
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
def routes(
    clock: SlowClock, make_config: Callable[..., Any], make_run: Callable[..., Any]
) -> Iterator[Routes]:
    """Topic n has n messages in each queue, of which group n has had half."""
    config = make_config(max_queues=TOPICS * QUEUES)
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
    table.close()
    (folder / "topics.json").write_text(json.dumps({"topicConfigTable": entries}))
    (folder / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    reput = Positions(run.positions, owner="reput")
    reput.publish("queue_count", TOPICS * QUEUES)
    reput.close()
    positions = Positions(run.positions)
    reading = Reading(config, run, positions, clock)
    yield Routes(reading, History(), pytest.fail)
    reading.close()
    positions.close()


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
        for page in range(1, 11)
        for row in ask("/api/topics", page=str(page), rows="200")["rows"]
    ]
    assert names == [f"topic-{number:04}" for number in range(TOPICS)]
    most = ask("/api/groups", order="lag")
    assert most["total"] == TOPICS
    assert most["rows"][0]["group"] == "group-1999"
    assert most["rows"][0]["lag"] == QUEUES * 1000
    # the queues have no files here, so how old a message is cannot be known
    assert most["rows"][0]["lag_ms"] is None
    (one,) = ask("/api/topics", search="1234")["rows"]
    assert one["messages"] == QUEUES * 1234


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
    for name, of in (("topic_messages_total", "topics"), ("group_lag_messages", "groups")):
        assert text.count(f"\npenstock_{name}{{") == MOST_SERIES
        assert f'penstock_series_left_out{{of="{of}"}} {TOPICS - MOST_SERIES}\n' in text


def test_a_page_takes_no_time_to_speak_of(ask: Any) -> None:
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
        ("/metrics", {}),
    ):
        for turn in ("first", "again"):
            at_s = time.monotonic()
            ask(path, **query)
            words = " ".join((path, *map("=".join, query.items()), turn))
            print(f"{words:<60} {(time.monotonic() - at_s) * 1000:8.1f} ms")
    assert time.monotonic() - began_s < BOUND_S
