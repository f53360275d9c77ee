"""config/consumerFilter.json: RocketMQ's form and rules, kept by whoever shows up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.errors import StoreDamaged
from penstock.shared.filters.bloom_filter import bit_positions
from penstock.shared.store.consumer_filters import (
    DEAD_BEFORE_START_MS,
    KEEP_DEAD_MS,
    LOOK_AGAIN_MS,
    MAX_EXPRESSION_BYTES,
    MAX_FILTERS,
    SAVE_EVERY_MS,
    SILENT_MS,
    ConsumerFilterFile,
    ConsumerFilters,
    load_consumer_filters,
)

# as RocketMQ writes it
ROCKETMQ = """{
	"filterDataByTopic":{"orders":{
			"groupFilterData":{"billing":{
					"bloomFilterData":{"bitNum":112,"bitPos":[31,20,9]},
					"bornTime":1700000000000,
					"clientVersion":123,
					"consumerGroup":"billing",
					"dead":false,
					"deadTime":0,
					"expression":"a > 5",
					"expressionType":"SQL92",
					"topic":"orders",
					"unknown":{0:12}
				}
			},
			"topic":"orders"
		}
	}
}"""
NOW_MS = 1_800_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerFilter.json"


@pytest.mark.parametrize(
    ("group", "topic", "positions"),
    [
        ("billing", "orders", [31, 20, 9]),
        ("g", "t", [22, 87, 58]),
        ("中文", "orders", [47, 66, 75]),
        ("", "", [3, 62, 22]),
        (
            "a-group-of-consumers-with-a-long-name",
            "a_topic_with_a_long_name_too",
            [57, 44, 31],
        ),
    ],
)
def test_the_bloom_filters_bits_are_rocketmqs(group: str, topic: str, positions: list[int]) -> None:
    """The positions are those of rocketmq-filter 5.3.3: BloomFilter.createByFn(20, 32)."""
    assert bit_positions(group, topic) == positions


def test_a_file_of_rocketmq_is_read_and_kept(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(ROCKETMQ)
    (entry,) = load_consumer_filters(file).all()
    assert (entry["consumerGroup"], entry["expression"]) == ("billing", "a > 5")
    running = ConsumerFilterFile(file, ManualClock(NOW_MS))
    running.register("orders", "new", "b = 1", 7)
    running.save(at_once=True)
    written = json.loads(file.read_text())["filterDataByTopic"]["orders"]
    assert written["topic"] == "orders" and set(written["groupFilterData"]) == {"billing", "new"}
    kept = written["groupFilterData"]["billing"]
    assert kept["unknown"] == {"0": 12}, "what is not known stays"
    assert kept["deadTime"] == NOW_MS - DEAD_BEFORE_START_MS and kept["dead"] is True
    assert written["groupFilterData"]["new"] == {
        "bloomFilterData": {"bitNum": 112, "bitPos": bit_positions("new", "orders")},
        "bornTime": NOW_MS,
        "clientVersion": 7,
        "consumerGroup": "new",
        "dead": False,
        "deadTime": 0,
        "expression": "b = 1",
        "expressionType": "SQL92",
        "topic": "orders",
    }
    assert file.with_name("consumerFilter.json.bak").read_text() == ROCKETMQ


def test_the_later_version_of_a_groups_filter_counts() -> None:
    filters = ConsumerFilters({})
    for version, expression, counts in (
        (5, "a = 1", "a = 1"),
        (4, "a = 2", "a = 1"),
        (5, "a = 3", "a = 1"),
        (6, "a = 4", "a = 4"),
    ):
        filters.register("t", "g", expression, version, NOW_MS + version, version)
        assert [entry["expression"] for entry in filters.all()] == [counts]
    filters.register("t", "g", "a = 4", 9, NOW_MS + 99, 99)
    (entry,) = filters.all()
    assert entry["clientVersion"] == 9 and entry["bornTime"] == NOW_MS + 6, "the same filter"


def test_a_silent_group_is_dead_revives_and_is_dropped_after_a_day() -> None:
    filters = ConsumerFilters({})
    filters.register("t", "g", "a = 1", 1, NOW_MS, 0)
    filters.clean(NOW_MS + SILENT_MS - 1, SILENT_MS - 1)
    assert filters.all()[0]["deadTime"] == 0
    died_ms = NOW_MS + SILENT_MS
    filters.clean(died_ms, SILENT_MS)
    assert filters.all()[0]["deadTime"] == died_ms and filters.all()[0]["dead"]
    filters.register("t", "g", "a = 1", 1, died_ms + 5, SILENT_MS + 5)
    assert filters.all()[0]["deadTime"] == 0 and not filters.all()[0]["dead"]
    filters.clean(died_ms + 5 + SILENT_MS, SILENT_MS + 5 + SILENT_MS)
    filters.clean(died_ms + 5 + SILENT_MS + KEEP_DEAD_MS - 1, KEEP_DEAD_MS)
    assert len(filters.all()) == 1
    filters.clean(died_ms + 5 + SILENT_MS + KEEP_DEAD_MS, KEEP_DEAD_MS)
    assert filters.all() == [] and json.loads(filters.encode()) == {"filterDataByTopic": {}}


def test_a_clock_that_jumps_buries_nobody_and_keeps_no_change_off_the_disk(file: Path) -> None:
    clock = ManualClock(NOW_MS)
    running = ConsumerFilterFile(file, clock)
    running.register("t", "g", "a = 1", 1)
    years_ms = 10 * 365 * 24 * 3_600_000
    clock.jump(years_ms)
    running.save(at_once=True)
    assert not running.filters.all()[0]["dead"]
    clock.jump(-2 * years_ms)
    running.register("t", "other", "a = 1", 1)
    clock.advance(SAVE_EVERY_MS)
    running.save()
    assert len(load_consumer_filters(file).all()) == 2


def test_the_file_is_saved_now_and_then_and_only_after_changes(file: Path) -> None:
    clock = ManualClock(NOW_MS)
    running = ConsumerFilterFile(file, clock)
    clock.advance(SAVE_EVERY_MS)
    running.save()
    assert not file.exists()
    running.register("t", "g", "a = 1", 1)
    clock.advance(SAVE_EVERY_MS - 1)
    running.save()
    assert not file.exists()
    clock.advance(1)
    running.save()
    assert len(load_consumer_filters(file).all()) == 1
    before = file.stat().st_mtime_ns
    running.register("t", "g", "a = 1", 1)
    clock.advance(SAVE_EVERY_MS)
    running.save()
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"filterDataByTopic": 5}', '{"filterDataByTopic": {"t": {}}}']
)
def test_a_broken_file_counts_for_nothing_and_its_copy_does(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(StoreDamaged, match=r"config/consumerFilter\.json"):
        load_consumer_filters(file)
    assert ConsumerFilterFile(file, ManualClock(NOW_MS)).filters.all() == []
    file.with_name("consumerFilter.json.bak").write_text(ROCKETMQ)
    assert len(ConsumerFilterFile(file, ManualClock(NOW_MS)).filters.all()) == 1


def test_a_disk_that_refuses_is_asked_again(file: Path) -> None:
    running = ConsumerFilterFile(file, ManualClock(NOW_MS))
    running.register("t", "g", "a = 1", 1)
    file.parent.write_text("no directory")
    running.save(at_once=True)
    assert running.filters.changed
    file.parent.unlink()
    running.save(at_once=True)
    assert len(load_consumer_filters(file).all()) == 1


def test_where_there_is_no_room_the_dead_go_first_and_nobody_is_refused() -> None:
    filters = ConsumerFilters({})
    for number in range(MAX_FILTERS + 5):
        filters.register("orders", f"evil-{number}", "a = 1", 1, 1000, 0)
    assert len(filters.all()) == MAX_FILTERS, "the others are obeyed, and not written down"
    filters.clean(2000, SILENT_MS)  # all of them are dead now
    filters.register("orders", "honest", "b = 1", 1, 3000, SILENT_MS + LOOK_AGAIN_MS)
    groups = {entry["consumerGroup"]: entry["dead"] for entry in filters.all()}
    assert groups["honest"] is False and len(groups) <= MAX_FILTERS
    assert sum(groups.values()) >= MAX_FILTERS // 2, "and not all of the dead"


def test_long_filters_take_no_more_room_than_many() -> None:
    filters = ConsumerFilters({})
    long = "a = 1" + " " * 8000
    for number in range(500):
        filters.register(f"topic-{number}", "evil", long, 1, 1000, 0)
    assert sum(len(entry["expression"]) for entry in filters.all()) <= MAX_EXPRESSION_BYTES
    assert len(filters.encode()) < 2 * MAX_EXPRESSION_BYTES
    # a longer filter of a group that has its place needs room for what it is longer by
    filters.register("topic-0", "evil", long + " " * 100_000, 2, 1000, 0)
    assert filters.all()[0]["clientVersion"] == 1
    filters.register("topic-0", "evil", "b = 1", 2, 1000, 0)
    filters.register("topic-9999", "honest", "b = 1", 2, 1000, 0)
    assert [entry["topic"] for entry in filters.all()][-1] == "topic-9999"


def test_after_a_restart_the_dead_make_room_at_once() -> None:
    before = ConsumerFilters({})
    for number in range(MAX_FILTERS):
        before.register("orders", f"evil-{number}", "a = 1", 1, 1000, 0)
    after = ConsumerFilters(json.loads(before.encode()))
    after.began(1_000_000)
    after.register("orders", "honest", "b = 1", 1, 1_000_000, 0)
    assert "honest" in {entry["consumerGroup"] for entry in after.all()}


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, True),
        ({"clientVersion": None, "bornTime": None, "deadTime": None}, True),
        ({"bloomFilterData": None, "consumerGroup": None}, True),
        ({"clientVersion": "1"}, False),
        ({"bornTime": 1.5}, False),
        ({"deadTime": []}, False),
        ({"expression": None}, False),
        ({"expression": 5}, False),
        ({"expressionType": None}, False),
    ],
)
def test_an_entry_without_its_texts_or_with_other_than_numbers_breaks_the_file(
    changes: dict[str, object], is_one: bool
) -> None:
    document = json.loads(ROCKETMQ.replace("{0:12}", "5"))
    entry = document["filterDataByTopic"]["orders"]["groupFilterData"]["billing"] | changes
    kept = {name: value for name, value in entry.items() if value is not None}
    document["filterDataByTopic"]["orders"]["groupFilterData"]["billing"] = kept
    if is_one:
        (found,) = ConsumerFilters(document).all()
        assert found["clientVersion"] == (0 if "clientVersion" in changes else 123)
        return
    with pytest.raises(ValueError, match="filters"):
        ConsumerFilters(document)
    for other in ({"orders": 5}, {"orders": {"groupFilterData": {"billing": 5}}}):
        with pytest.raises(ValueError, match="filters"):
            ConsumerFilters({"filterDataByTopic": other})


def test_one_filter_of_another_form_breaks_the_file_though_others_are_sound() -> None:
    document = json.loads(ROCKETMQ.replace("{0:12}", "5"))
    groups = document["filterDataByTopic"]["orders"]["groupFilterData"]
    groups["another"] = {"expression": 5}
    with pytest.raises(ValueError, match="filters"):
        ConsumerFilters(document)
