"""`penstock bench`: each kind measures what it says, on a real broker, and miscounts nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.groups.exactly import bench_exactly
from penstock.bench.loads.load import Receive, Send
from penstock.bench.loads.load_process import load_command, measured, started
from penstock.bench.loads.percentile import percentile
from penstock.bench.loads.stack import Stack, running_stack
from penstock.bench.loads.target import Where, opened
from penstock.bench.log.pipeline import MOST_TOLD, Lag, growth_mib
from penstock.bench.reports.machine import measure_machine
from penstock.cli.main import main
from penstock.maintenance.verify.check import verify_store
from penstock.shared.errors import StoreUnavailable

pytestmark = pytest.mark.takes(60)

SMALL = ("--set", "mapped_file_size_commit_log_bytes=67108864")
LIMITS = (
    "write_new_file_mb_per_s",
    "write_existing_file_mb_per_s",
    "memcpy_to_map_mb_per_s",
    "zeromq_frames_per_s",
)


def _bench(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "penstock.cli.main", "bench", *arguments]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _check(result: dict[str, Any]) -> None:
    """What every kind promises of its result."""
    rate = result["messages"] / result["seconds"]
    assert abs(result["messages_per_s"] / rate - 1) < 0.01
    assert abs(result["mb_per_s"] / (rate * result["shape"]["size"] / 1e6) - 1) < 0.02
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    cpu = result["cpu_s_per_million"]
    assert {"supervisor", "writer", "committer", "flusher", "reput", "reader", "client"} < set(cpu)
    assert abs(sum(cpu.values()) - 2 * cpu["total"]) < 0.1 and cpu["client"] > 0
    assert all(result["machine"][limit] > 0 for limit in LIMITS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker that serves all tests that do not need one of their own."""
    small = "mapped_file_size_commit_log_bytes = 67_108_864"
    with running_stack(tmp_path_factory.mktemp("bench"), (small,)) as running:
        yield running


def test_several_producers_store_what_is_counted_and_consumers_read_it(stack: Stack) -> None:
    before = verify_store(stack.store).messages
    two = ("--producers", "2", "--size", "100", "--ack", "written", "--store", str(stack.store))
    sent, again = _bench("produce", "--seconds", "0.2", "--runs", "2", *two)
    endpoints = ("--endpoint", stack.produce, stack.consume)
    shape = ("--consumers", "2", "--seconds", "0.2", "--runs", "1")
    (read,) = _bench("consume", *shape, *endpoints)
    _check(sent)
    assert sent["shape"] | {"size": 100, "producers": 2, "ack": "written"} == sent["shape"]
    assert (sent["run"], again["run"]) == (0, 1)
    assert sent["stored"] > sent["messages"]
    # nobody can look at the processes that serve an endpoint
    assert set(read["cpu_s_per_million"]) == {"client", "total"}
    backlog = read["details"]["backlog"]
    assert read["stored"] == backlog
    assert read["messages"] == backlog * read["details"]["passes"] > 0
    stored = sent["stored"] + again["stored"] + backlog
    assert verify_store(stack.store).messages == before + stored


def test_latency_is_that_of_each_message_at_the_rate(stack: Stack) -> None:
    shape = ("--seconds", "0.5", "--runs", "1", "--rate", "500")
    (result,) = _bench("latency", *shape, "--store", str(stack.store))
    _check(result)
    assert (result["messages"], result["stored"]) == (250, 500)
    assert result["messages_per_s"] < 520
    assert result["p99_ms"] <= result["details"]["max_ms"]


def test_latency_explains_where_messages_that_came_alone_have_been(stack: Stack) -> None:
    shape = ("--seconds", "0.5", "--runs", "1", "--rate", "100", "--ack", "written")
    (result,) = _bench("latency", *shape, "--explain", "--store", str(stack.store))
    stages = {stage["stage"]: stage for stage in result["details"]["stages"]}
    assert {"sent", "wrote", "answered", "received"} <= {*stages}
    # the answer and the message go to two threads, and either may be there first
    for last in ("answered", "received"):
        order = [stages[name]["at_p50_us"] for name in ("sent", "wrote", last)]
        assert order == sorted(order) and order[0] >= 0
    for stage in stages.values():
        assert 0 < stage["messages"] <= result["messages"]
        assert stage["at_p50_us"] <= stage["at_p99_us"] <= result["details"]["max_ms"] * 1000 + 1
    # whoever wrote slept before, as nothing else was to be done
    assert stages["wrote"]["wake_p50_us"] > 0 and stages["wrote"]["work_p50_us"] > 0


def test_pipeline_tells_how_far_queues_are_behind_and_what_memory_is_used(stack: Stack) -> None:
    shape = ("--seconds", "0.6", "--runs", "1")
    details: dict[str, Any] = {}
    # on a busy machine nobody may look while a flush is going on
    while not details or not details["flushed_behind_wrote"]["max_ms"]:
        (result,) = _bench("pipeline", *shape, "--store", str(stack.store))
        _check(result)
        details = result["details"]
    lags = ("reput_behind_flushed", "reput_behind_committed", "flushed_behind_wrote")
    for lag in (details[name] for name in lags):
        assert lag["looks"] and 0 <= lag["p50_ms"] <= lag["p99_ms"] <= lag["max_ms"]
    assert 2 <= len(details["memory_mib"]) <= MOST_TOLD
    for look in details["memory_mib"]:
        assert all(0 < look["pss"][name] <= look["rss"][name] for name in look["rss"])
        assert all(0 < look["own"][name] <= look["pss"][name] for name in look["pss"])
        assert look["rss"]["writer"] > 10
    assert 30 < details["idle_pss_mib"] < 1000


def test_a_machine_is_measured_in_a_place_whose_path_no_socket_could_have(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 120)
    place.mkdir()
    assert measure_machine(place, 1 << 20, 20).zeromq_frames_per_s > 0
    assert list(place.iterdir()) == []


@given(st.lists(st.integers(50, 300), min_size=20, max_size=200), st.integers(0, 400))
def test_memory_that_grows_after_warming_up_is_told_apart_from_memory_that_does_not(
    warm: list[int], more: int
) -> None:
    part = len(warm) // 10
    steady = [*warm[:part], *([100.0] * (len(warm) - part))]
    assert growth_mib(steady) == 0
    assert growth_mib([*steady[:-part], *([100.4 + more] * part)]) == more
    assert growth_mib(steady[:9]) is None


def test_topics_measures_each_number_of_queues() -> None:
    shape = ("--seconds", "0.3", "--runs", "1", "--queues", "8", "--queues", "100")
    few, many = _bench("topics", *shape, *SMALL)
    _check(few)
    _check(many)
    assert (few["shape"]["queues"], many["shape"]["queues"]) == (8, 100)
    assert many["stored"] >= 100


def test_producers_measures_each_number_of_producers() -> None:
    shape = ("--seconds", "0.3", "--runs", "1", "--producers", "1", "--producers", "30")
    few, many = _bench("producers", *shape, "--in-flight", "60", *SMALL)
    _check(few)
    _check(many)
    assert (few["shape"]["producers"], many["shape"]["producers"]) == (1, 30)


def test_consumers_measures_each_number_of_consumers_and_each_gets_every_message() -> None:
    shape = ("--seconds", "0.5", "--rate", "400", "--runs", "1", *SMALL)
    one, many = _bench("consumers", *shape, "--consumers", "1", "--consumers", "30")
    for result, consumers in ((one, 1), (many, 30)):
        _check(result)
        assert result["shape"]["consumers"] == consumers
        assert result["messages"] == consumers * 200
        assert result["stored"] == 200 + 400 * 2


def test_a_store_that_holds_another_number_fails_the_measurement(stack: Stack) -> None:
    with opened(Where(stack.store), "durable") as target:
        topics = target.new_topics(2)
        order = Send(target.produce, topics, 10, "durable", 10, 0, 0, warm_messages=5, queues=2)
        with started([load_command(order)]) as processes:
            (seen,) = measured(processes, 0, lambda done, total: None)
        assert (seen.messages, seen.warm_messages) == (0, 7)
        assert target.check(topics, 7, "durable") == 7
        with pytest.raises(
            StoreUnavailable, match="8 messages were acknowledged, and another number is stored: 7"
        ):
            target.check(topics, 8, "durable")


@pytest.mark.parametrize(
    ("messages", "body_bytes", "wrong"),
    [(7, 100, None), (8, 100, "has 7 messages, not 8"), (7, 99, "come to 1393 and not 1379")],
)
def test_a_backlog_is_read_whole_and_every_body_is_looked_at(
    stack: Stack, messages: int, body_bytes: int, wrong: str | None
) -> None:
    with opened(Where(stack.store), "durable") as target:
        topics = target.new_topics(1)
        send = Send(target.produce, topics, 100, "durable", 10, 0, warm_s=0, warm_messages=7)
        with started([load_command(send)]) as processes:
            measured(processes, 0, lambda done, total: None)
        target.check(topics, 7, "durable")
        read = Receive(target.consume, topics[0], messages, 0, body_bytes=body_bytes)
        with started([load_command(read)]) as processes:
            if wrong is None:
                (seen,) = measured(processes, 0, lambda done, total: None)
                assert seen.messages == 7
            else:
                with pytest.raises(StoreUnavailable, match=wrong):
                    measured(processes, 0, lambda done, total: None)


def test_a_load_that_fails_says_why() -> None:
    order = Send("tcp://127.0.0.1:1", ["t"], 10, "never", 10, seconds=1)
    with (
        pytest.raises(StoreUnavailable, match="never"),
        started([load_command(order)]),
    ):
        pass


def test_the_lag_is_how_long_ago_the_one_ahead_was_where_the_other_is() -> None:
    lag = Lag()
    assert lag.lag_ms(100, 100, now=1.0) == 0
    assert lag.lag_ms(200, 100, now=2.0) == 0
    assert lag.lag_ms(300, 100, now=2.5) == 500
    assert lag.lag_ms(300, 200, now=2.75) == 250
    assert lag.lag_ms(300, 300, now=3.0) == 0


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 201)]
    assert [percentile(values, percent) for percent in (50, 99, 100)] == [100, 198, 200]
    assert percentile([7.0], 50) == 7 and percentile([], 99) is None


def test_a_group_is_measured_by_reading_and_by_sharing() -> None:
    speed, rebalance = _bench(
        *("group", *SMALL, "--messages", "20000", "--runs", "1"),
        *("--groups", "5", "--members", "3", "--queues", "4", "--seconds", "1"),
    )
    assert (speed["kind"], speed["messages"], speed["size"]) == ("speed", 20_000, 100)
    rates = [value for name, value in speed.items() if name.endswith("_per_s")]
    assert len(rates) == 5 and all(rate > 100 for rate in rates)
    ratio = speed["batches_per_s"] / speed["plain_per_s"]
    assert abs(speed["batches_of_plain"] / ratio - 1) < 0.01 and speed["commits"] > 0
    assert (rebalance["kind"], rebalance["groups"], rebalance["members"]) == ("rebalance", 5, 3)
    assert rebalance["cold_s"] > 0 and rebalance["killed_s"] > 0
    assert 0 <= rebalance["quiet_coordinator_percent"] <= rebalance["quiet_broker_percent"]


def test_restarts_of_stores_of_two_sizes_take_turns() -> None:
    sizes = ("--gib", "0.064,0.128", "--set", "max_message_size_bytes=65536")
    found = _bench("restart", *sizes, *SMALL, "--messages", "50", "--runs", "1", "--queues", "3")
    assert [each["gib"] for each in found] == [0.064, 0.128]
    for each in found:
        assert each["from_memory"] and each["index_files"] == 1
        assert each["acknowledged_s"] > 0 and 0 < each["cpu_s"] < 60
        # of the log one segment, of the sparse store's three queues and the new ones each one
        assert 3 <= each["read_files"] <= 1 + 3 + 4 + 1


def test_a_copy_exactly_once_is_measured_beside_one_without_it() -> None:
    (result,) = bench_exactly(300, 50, 100, 1, lambda done, total: None)
    rates = (result.exactly_per_s, result.exactly_ahead_per_s)
    assert min(*rates, result.least_per_s, result.least_ahead_per_s) > 0
    assert result.ratio == pytest.approx(result.exactly_per_s / result.least_per_s, abs=0.01)


def test_bodies_and_arrow_together_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """One of them was measured, and nothing said which."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "consume", "--bodies", "--arrow"])
    assert ended.value.code == 2
    assert "--bodies and --arrow" in capsys.readouterr().err
