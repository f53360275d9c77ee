"""What `/metrics` says of a broker whose every number is known: each of them to the last digit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import __version__
from penstock.actors.monitor import exposition
from penstock.actors.monitor.disk import Room
from penstock.actors.monitor.exposition import render
from penstock.actors.monitor.history import SAMPLE_MS, History
from penstock.actors.monitor.reading import Reading
from penstock.shared.memory.durations import BUCKETS, upper_ns
from penstock.shared.memory.positions import STATES, Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.roster import ROSTER

STARTED_MS, NOW_MS = 1_700_000_000_250, 100_000


class Scrape:
    """A broker whose actors all run, and what is scraped of it."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        broker.clock.advance(NOW_MS - broker.clock.monotonic_ms())
        self.history = History()
        run = replace(broker.run, started_ms=STARTED_MS)
        self.reading = Reading(broker.config, run, broker.positions, broker.clock)
        for row in ROSTER:
            self.supervise(row.name, "running", pid=1, generation=1)

    def supervise(self, actor: str, state: str, **words: int) -> None:
        self.broker.positions.supervise(actor, state=STATES.index(state), **words)

    def set(self, **positions: int) -> None:
        for name, value in positions.items():
            self.broker.positions.initialise(name, value)

    def add_queues(self, *queues: tuple[str, int, int, int]) -> None:
        """(topic, queue, min offset, max offset)."""
        table = QueueTable(self.broker.run.queues, writable=True)
        for slot, (topic, queue_id, low, high) in enumerate(queues):
            table.add(slot, QueueKey(topic, queue_id), low, high)
        table.close()
        self.set(queue_count=len(queues))

    def lines(self) -> list[str]:
        return render(self.reading, self.history, 5).decode().splitlines()

    def numbers(self, name: str) -> dict[str, str]:
        """Labels -> number, of one metric."""
        found = {}
        for line in self.lines():
            series, _, number = line.rpartition(" ")
            own, _, labels = series.partition("{")
            if own == f"penstock_{name}":
                found[labels.removesuffix("}")] = number
        return found


@pytest.fixture
def scrape(pipeline: Callable[..., Any]) -> Iterator[Scrape]:
    found = Scrape(pipeline(actor_stall_timeout_ms=3000))
    yield found
    found.reading.close()


def test_each_position_is_the_sample_of_its_name(scrape: Scrape) -> None:
    scrape.set(
        wrote=5000, committed=4000, flushed=6000, dispatched=1000, run_began=700, log_start=300
    )
    scrape.set(waiting_pulls=3, filtered_pulls=4, closed_producers=11, closed_consumers=12)
    scrape.set(closed_members=13, closed_transaction_clients=14, closed_clients=15)
    scrape.set(transactions_committed=21, transactions_rolled_back=22, transactions_discarded=23)
    scrape.set(deleted_segments=31, deleted_queue_files=32, deleted_index_files=33, disk_used=43)
    for name, numbers in {
        "build_info": {f'version="{__version__}"': "1"},
        "stage_position_bytes": {
            'stage="writer"': "5000",
            'stage="committer"': "4000",
            'stage="flusher"': "6000",
            'stage="reput"': "1000",
        },
        # the flusher was read later, and is not late because of that
        "stage_behind_bytes": {
            'stage="writer"': "0",
            'stage="committer"': "1000",
            'stage="flusher"': "0",
            'stage="reput"': "4000",
        },
        "appended_bytes_total": {"": "4300"},
        "log_bytes": {"": "4700"},
        "log_start_bytes": {"": "300"},
        "waiting_pulls": {'kind="plain"': "3", 'kind="filtered"': "4"},
        "closed_connections_total": {
            'actor="writer"': "11",
            'actor="reader"': "12",
            'actor="coordinator"': "13",
            'actor="transactions"': "14",
            'actor="gateway"': "15",
        },
        "transactions_ended_total": {
            'outcome="committed"': "21",
            'outcome="rolled_back"': "22",
            'outcome="discarded"': "23",
        },
        "deleted_files_total": {
            'kind="segment"': "31",
            'kind="queue_file"': "32",
            'kind="index_file"': "33",
        },
        "disk_used_ratio": {"": "0.42"},
        "disk_full": {"": "0"},
        "monitor_requests_total": {"": "5"},
        "start_time_seconds": {"": "1700000000.25"},
    }.items():
        assert scrape.numbers(name) == numbers, name
    assert scrape.lines()[0].startswith("# HELP penstock_build_info ")


def test_a_full_disk_takes_no_message_and_is_healthy(scrape: Scrape) -> None:
    for row in ROSTER:
        own = Positions(scrape.broker.run.positions, owner=row.name)
        own.beat(NOW_MS, 1)
        own.close()
    assert [scrape.numbers(each) for each in ("healthy", "ready")] == [{"": "1"}] * 2
    scrape.set(disk_full=91)
    assert [scrape.numbers(each)[""] for each in ("healthy", "ready", "disk_full")] == [*"101"]
    scrape.set(disk_full=0, flush_error=28)
    assert [scrape.numbers(each)[""] for each in ("healthy", "ready")] == [*"00"]
    assert scrape.numbers("error_number")['of="flush"'] == "28"


def test_an_actor_is_up_while_it_runs_and_one_that_is_off_hides_no_other(scrape: Scrape) -> None:
    first, second, third, last = ROSTER[0].name, ROSTER[1].name, ROSTER[2].name, ROSTER[-1].name
    scrape.supervise(first, "off", pid=0)
    scrape.supervise(second, "running", pid=0)
    scrape.supervise(third, "starting", pid=7, restarts=3)
    own = Positions(scrape.broker.run.positions, owner=last)
    own.beat(NOW_MS - 1500, 1, 7)
    own.close()
    up = scrape.numbers("actor_up")
    assert list(up) == [f'actor="{row.name}"' for row in ROSTER[1:]]
    assert (up[f'actor="{second}"'], up[f'actor="{third}"'], up[f'actor="{last}"']) == (*"001",)
    assert scrape.numbers("actor_restarts_total")[f'actor="{third}"'] == "3"
    assert scrape.numbers("actor_cycles_total")[f'actor="{last}"'] == "1"
    pages = scrape.numbers("unreadable_pages_total")
    assert (pages[f'actor="{third}"'], pages[f'actor="{last}"']) == ("0", "7")
    assert scrape.numbers("actor_heartbeat_age_seconds") == {f'actor="{last}"': "1.5"}


def test_how_late_a_stage_is_comes_in_seconds_where_it_is_known(scrape: Scrape) -> None:
    scrape.set(wrote=100)
    scrape.history.look(scrape.broker.positions, NOW_MS - 2500)
    scrape.set(wrote=200)
    scrape.history.look(scrape.broker.positions, NOW_MS - 1250)
    scrape.set(committed=100, flushed=200)
    # since when the reput lags was at no look
    assert scrape.numbers("stage_behind_seconds") == {
        'stage="writer"': "0",
        'stage="committer"': "1.25",
        'stage="flusher"': "0",
    }


def test_the_room_of_the_disk_and_when_it_is_used(
    scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "room_of", lambda path: Room(1000, 250))
    assert scrape.numbers("disk_full_in_seconds") == {}, "how fast the log grows is not known"
    for second in range(61):
        scrape.set(wrote=second << 20)
        scrape.history.look(scrape.broker.positions, second * SAMPLE_MS)
        scrape.history.sample(scrape.broker.positions, 0, second * SAMPLE_MS, 0)
    assert float(scrape.numbers("disk_full_in_seconds")[""]) >= 0
    assert [scrape.numbers(f"disk_{of}_bytes") for of in ("size", "free")] == [
        {"": "1000"}, {"": "250"}
    ]  # fmt: skip
    monkeypatch.setattr(exposition, "room_of", lambda path: None)
    assert [scrape.numbers(f"disk_{of}_bytes") for of in ("size", "free")] == [{}, {}]


def test_topics_and_groups_have_what_their_queues_have(
    scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrape.add_queues(("b", 0, 3, 10), ("b", 1, 0, 5), ("a", 0, 2, 2), ("c", 7, 1, 4))
    paths = scrape.broker.paths
    paths.topics.write_text(json.dumps({"topicConfigTable": {"new": {"topicName": "new"}}}))
    offsets = {"b@late": {"0": 4, "1": 5}, "b@later": {"0": 0}, "a@none": {"0": 2}}
    paths.consumer_offsets.write_text(json.dumps({"offsetTable": offsets}))
    scrape.set(deleted_queues=1)
    assert scrape.numbers("queues") == {"": "3"}
    assert scrape.numbers("messages_total") == {"": "21"}
    assert scrape.numbers("topic_messages_total") == {
        'topic="a"': "2", 'topic="b"': "15", 'topic="c"': "4", 'topic="new"': "0",
    }  # fmt: skip
    assert scrape.numbers("topic_stored_messages") == {
        'topic="a"': "0", 'topic="b"': "12", 'topic="c"': "3", 'topic="new"': "0",
    }  # fmt: skip
    # of what has expired nothing is to be done
    assert scrape.numbers("group_lag_messages") == {
        'group="late"': "6", 'group="later"': "7", 'group="none"': "0",
    }  # fmt: skip
    assert [scrape.numbers(of) for of in ("topics", "groups")] == [{"": "4"}, {"": "3"}]
    assert scrape.numbers("series_left_out") == {'of="topics"': "0", 'of="groups"': "0"}
    monkeypatch.setattr(exposition, "MOST_SERIES", 2)
    assert scrape.numbers("series_left_out") == {'of="topics"': "2", 'of="groups"': "1"}
    assert [*scrape.numbers("topic_stored_messages")] == ['topic="a"', 'topic="b"']
    assert [*scrape.numbers("group_lag_messages")] == ['group="late"', 'group="later"']


def test_topics_that_cannot_be_read_are_those_that_have_messages_by_name(scrape: Scrape) -> None:
    scrape.add_queues(("b", 0, 0, 1), ("a", 0, 0, 2))
    scrape.broker.paths.topics.write_text("{")
    scrape.broker.paths.subscription_groups.write_text("{")
    assert scrape.numbers("topic_messages_total") == {'topic="a"': "2", 'topic="b"': "1"}
    for name in ("topics", "groups", "series_left_out", "group_lag_messages"):
        assert scrape.numbers(name) == {}, name


def test_a_histogram_is_cumulative_and_its_last_bucket_has_all(scrape: Scrape) -> None:
    own = Positions(scrape.broker.run.positions, owner="flusher")
    for took_ns in (1, 20_000, 40_000, 10**12):
        own.count_duration("flush", took_ns)
    own.close()
    found = scrape.numbers("flush_seconds_bucket")
    edges = [float(each.removeprefix('le="').removesuffix('"')) for each in found]
    # a bucket for each doubling, with as many digits as a scrape has
    assert edges[:-1] == pytest.approx([upper_ns(of) / 1e9 for of in range(3, BUCKETS - 1, 4)])
    assert edges[-1] == float("inf")
    assert [*found.values()] == ["2", *["3"] * (BUCKETS // 4 - 2), "4"]
    assert scrape.numbers("flush_seconds_sum") == {"": "1000.000060001"}
    assert scrape.numbers("flush_seconds_count") == {"": "4"}
