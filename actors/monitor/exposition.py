"""`/metrics`: what the monitor reads, in Prometheus' text format 0.0.4.

An unknown number has no sample: Prometheus takes a missing one for missing, and a 0 for 0. Topics
and groups have at most MOST_SERIES samples each, the first by name, so that it does not change with
every scrape which ones are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock import __version__
from penstock.actors.monitor.disk import full_in_s, room_of
from penstock.actors.monitor.history import History
from penstock.actors.monitor.metric_table import METRICS, Metric
from penstock.actors.monitor.overview import ERRORS, heartbeat_age_ms, problems, refusals
from penstock.actors.monitor.reading import Reading
from penstock.actors.monitor.topics import lag_of, stored_in
from penstock.shared.memory.durations import BUCKETS, upper_ns
from penstock.shared.memory.positions import STAGES
from penstock.shared.memory.roster import ROSTER
from penstock.shared.process.disk_full import used_percent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 500
# Buckets of shared memory in one bucket of a histogram, which spans a doubling.
_FOLD = 4


class Sample(NamedTuple):
    """A metric's number; `labels` are the values of its labels."""

    metric: str
    labels: tuple[str, ...]
    value: float


def samples(reading: Reading, history: History, requests: int) -> Iterator[Sample]:
    """All samples except those of the histograms."""
    for metric in METRICS:
        if metric.position:
            yield Sample(metric.name, (), reading.positions[metric.position])
    yield from _broker(reading, requests)
    yield from _actors(reading)
    yield from _log(reading, history)
    yield from _disk(reading, history)
    yield from _clients(reading)
    yield from _names(reading)


def _broker(reading: Reading, requests: int) -> Iterator[Sample]:
    wrong = problems(reading, reading.clock.monotonic_ms())
    yield Sample("penstock_build_info", (__version__,), 1)
    yield Sample("penstock_start_time_seconds", (), reading.run.started_ms / 1000)
    yield Sample("penstock_healthy", (), not wrong)
    yield Sample("penstock_ready", (), not wrong and not refusals(reading))
    yield Sample("penstock_monitor_requests_total", (), requests)
    for name in ERRORS:
        of = name.removesuffix("_error")
        yield Sample("penstock_error_number", (of,), reading.positions[name])


def _actors(reading: Reading) -> Iterator[Sample]:
    now_ms = reading.clock.monotonic_ms()
    for row in ROSTER:
        life = reading.positions.life(row.name)
        if life.state == "off":
            continue
        works = life.state == "running" and life.pid > 0
        yield Sample("penstock_actor_up", (row.name,), works)
        yield Sample("penstock_actor_restarts_total", (row.name,), life.restarts)
        yield Sample("penstock_actor_cycles_total", (row.name,), life.cycles)
        yield Sample("penstock_unreadable_pages_total", (row.name,), life.unreadable_pages)
        age_ms = heartbeat_age_ms(reading.positions, row.name, now_ms)
        if age_ms is not None:
            yield Sample("penstock_actor_heartbeat_age_seconds", (row.name,), age_ms / 1000)


def _log(reading: Reading, history: History) -> Iterator[Sample]:
    positions, now_ms = reading.positions, reading.clock.monotonic_ms()
    for stage, name in STAGES.items():
        at = positions[name]
        yield Sample("penstock_stage_position_bytes", (stage,), at)
        yield Sample("penstock_stage_behind_bytes", (stage,), max(0, positions["wrote"] - at))
        if (late_ms := history.late_ms(at, now_ms)) is not None:
            yield Sample("penstock_stage_behind_seconds", (stage,), late_ms / 1000)
    yield Sample("penstock_appended_bytes_total", (), positions["wrote"] - positions["run_began"])
    yield Sample("penstock_log_bytes", (), positions["wrote"] - positions["log_start"])
    yield Sample("penstock_messages_total", (), reading.queues.message_count)


def _disk(reading: Reading, history: History) -> Iterator[Sample]:
    positions, room = reading.positions, room_of(reading.paths.commit_log)
    if room is not None:
        yield Sample("penstock_disk_size_bytes", (), room.size)
        yield Sample("penstock_disk_free_bytes", (), room.free)
    if (used := used_percent(positions["disk_used"])) is not None:
        yield Sample("penstock_disk_used_ratio", (), used / 100)
    yield Sample("penstock_disk_full", (), bool(positions["disk_full"]))
    if (left_s := full_in_s(reading, history)) is not None:
        yield Sample("penstock_disk_full_in_seconds", (), left_s)
    for kind in ("segment", "queue_file", "index_file"):
        yield Sample("penstock_deleted_files_total", (kind,), positions[f"deleted_{kind}s"])


def _clients(reading: Reading) -> Iterator[Sample]:
    positions = reading.positions
    for kind, name in (("plain", "waiting_pulls"), ("filtered", "filtered_pulls")):
        yield Sample("penstock_waiting_pulls", (kind,), positions[name])
    for actor, name in (
        ("writer", "closed_producers"),
        ("reader", "closed_consumers"),
        ("coordinator", "closed_members"),
        ("transactions", "closed_transaction_clients"),
        ("gateway", "closed_clients"),
    ):
        yield Sample("penstock_closed_connections_total", (actor,), positions[name])
    for outcome in ("committed", "rolled_back", "discarded"):
        count = positions[f"transactions_{outcome}"]
        yield Sample("penstock_transactions_ended_total", (outcome,), count)


def _names(reading: Reading) -> Iterator[Sample]:
    topics, groups = reading.topic_names(), reading.group_names()
    queues = reading.positions["queue_count"] - reading.positions["deleted_queues"]
    yield Sample("penstock_queues", (), queues)
    # the queues know the messages of each topic that has any, whatever the topics' file says
    counted = sorted(reading.topics_with_queues()) if topics is None else topics
    for topic in counted[:MOST_SERIES]:
        stored, ever = stored_in(reading, topic)
        yield Sample("penstock_topic_messages_total", (topic,), ever)
        yield Sample("penstock_topic_stored_messages", (topic,), stored)
    if topics is not None:
        yield Sample("penstock_topics", (), len(topics))
        yield Sample("penstock_series_left_out", ("topics",), max(0, len(topics) - MOST_SERIES))
    if groups is None:
        return
    yield Sample("penstock_groups", (), len(groups))
    offsets = reading.group_offsets() or {}
    for group in groups[:MOST_SERIES]:
        if (lag := lag_of(reading, offsets.get(group))) is not None:
            yield Sample("penstock_group_lag_messages", (group,), lag)
    yield Sample("penstock_series_left_out", ("groups",), max(0, len(groups) - MOST_SERIES))


def render(reading: Reading, history: History, requests: int) -> bytes:
    """The whole page, with metrics in the table's order."""
    found: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    for sample in samples(reading, history, requests):
        found[sample.metric].append(sample)
    lines: list[str] = []
    for metric in METRICS:
        own = [_line(metric.name, metric.labels, *each[1:]) for each in found[metric.name]]
        if metric.kind == "histogram":
            own = list(_histogram(metric, *reading.positions.durations(_source(metric))))
        if own:
            lines += [f"# HELP {metric.name} {metric.sentence}"]
            lines += [f"# TYPE {metric.name} {metric.kind}", *own]
    return ("\n".join(lines) + "\n").encode()


def _source(metric: Metric) -> str:
    return metric.name.removeprefix("penstock_").removesuffix("_seconds")


def _histogram(metric: Metric, sum_ns: int, counts: list[int]) -> Iterator[str]:
    """Cumulative, with a bucket for each doubling. The last one has no bound, so it has all."""
    total = 0
    for bucket in range(BUCKETS):
        total += counts[bucket]
        if bucket % _FOLD == _FOLD - 1 and bucket < BUCKETS - 1:
            edge = f"{upper_ns(bucket) / 1e9:.9g}"
            yield _line(f"{metric.name}_bucket", ("le",), (edge,), total)
    yield _line(f"{metric.name}_bucket", ("le",), ("+Inf",), total)
    yield _line(f"{metric.name}_sum", (), (), sum_ns / 1e9)
    yield _line(f"{metric.name}_count", (), (), total)


def _line(name: str, labels: tuple[str, ...], values: tuple[str, ...], number: float) -> str:
    inner = ",".join(f'{k}="{_escaped(v)}"' for k, v in zip(labels, values, strict=True))
    shown = str(int(number)) if number == int(number) else repr(float(number))
    return f"{name}{{{inner}}} {shown}" if inner else f"{name} {shown}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
