"""Every number that `/metrics` has: name, type, unit, sentence, labels; declared here and nowhere
else. docs/metrics.md and the Grafana board are made from this table, and tests compare them.

Names follow Prometheus: the unit comes last, in seconds, bytes or ratios, and `_total` for
counters.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """`unit` is that of its values; a histogram's is that of its bucket bounds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    sentence: str
    labels: tuple[str, ...] = ()
    # the position that has its value, if there is one
    position: str = ""


def _gauge(name: str, unit: str, sentence: str, *labels: str, of: str = "") -> Metric:
    return Metric(f"penstock_{name}", "gauge", unit, sentence, labels, of)


def _counter(name: str, unit: str, sentence: str, *labels: str, of: str = "") -> Metric:
    return Metric(f"penstock_{name}_total", "counter", unit, sentence, labels, of)


METRICS = (
    _gauge("build_info", "1", "Always 1; the version is in its label.", "version"),
    _gauge("start_time_seconds", "seconds", "When the broker started, since 1970."),
    _gauge("healthy", "bool", "1 if all actors work and no file has failed, else 0."),
    _gauge("ready", "bool", "1 if messages are accepted, else 0."),
    # --- actors ---
    _gauge("actor_up", "bool", "1 if the actor works, else 0.", "actor"),
    _gauge("actor_heartbeat_age_seconds", "seconds", "Time since the actor last moved.", "actor"),
    _counter("actor_restarts", "restarts", "How often the actor was replaced.", "actor"),
    _counter("actor_cycles", "cycles", "Cycles of the loop of its last process.", "actor"),
    _counter(
        "unreadable_pages",
        "pages",
        "Pages that the last process of the actor asked the disk for in vain.",
        "actor",
    ),
    # --- the log ---
    _gauge(
        "stage_position_bytes", "bytes", "The log offset up to which the stage is done.", "stage"
    ),
    _gauge("stage_behind_bytes", "bytes", "What the stage still has to do.", "stage"),
    _gauge("stage_behind_seconds", "seconds", "For how long that has been waiting.", "stage"),
    _counter("appended_bytes", "bytes", "What was appended to the log in this run."),
    _counter("messages", "messages", "Messages that consume queues have had."),
    _gauge("log_bytes", "bytes", "What the log holds."),
    _gauge("log_start_bytes", "bytes", "The first log offset that is still there.", of="log_start"),
    _gauge("log_allocated_bytes", "bytes", "Segments exist up to this log offset.", of="allocated"),
    Metric(
        "penstock_acknowledge_seconds",
        "histogram",
        "seconds",
        "From a frame's place in the log to its durable answer.",
    ),
    Metric("penstock_flush_seconds", "histogram", "seconds", "The sync of a segment of the log."),
    # --- errors ---
    _gauge(
        "error_number", "errno", "Why a stage cannot go on, as the system says; 0 is none.", "of"
    ),
    _gauge(
        "read_only", "bool", "1 if the log is damaged, so no message is accepted.", of="read_only"
    ),
    # --- disk ---
    _gauge("disk_size_bytes", "bytes", "The size of the log's disk."),
    _gauge("disk_free_bytes", "bytes", "What is free on the log's disk for the broker."),
    _gauge("disk_used_ratio", "ratio", "How full the fullest disk is, without segments ahead."),
    _gauge("disk_full", "bool", "1 if the disk is so full that no message is accepted."),
    _gauge(
        "disk_full_in_seconds",
        "seconds",
        "Until no message is accepted any more, if the log grows as in the last 15 minutes.",
    ),
    _counter("deleted_files", "files", "Expired files that this run has deleted.", "kind"),
    _counter(
        "recycled_segments",
        "files",
        "Log segments that were made of expired ones.",
        of="recycled_segments",
    ),
    # --- clients ---
    _counter("answered_pulls", "answers", "Pulls answered with messages.", of="answered_pulls"),
    _gauge("waiting_pulls", "pulls", "Pulls that wait for messages.", "kind"),
    _counter(
        "closed_connections", "connections", "Connections closed for what came over them.", "actor"
    ),
    _gauge("producer_rings", "rings", "Producers that send through shared memory.", of="rings"),
    _gauge(
        "gateway_connections",
        "connections",
        "Connections of clients of RocketMQ's protocol.",
        of="client_count",
    ),
    # --- groups, delays, transactions ---
    _gauge("group_members", "members", "Members of all consumer groups.", of="member_count"),
    _gauge("groups_with_members", "groups", "Consumer groups with members.", of="group_count"),
    _gauge(
        "delayed_messages", "messages", "Messages whose time has not come.", of="pending_delayed"
    ),
    _counter("delayed_delivered", "messages", "Delayed messages delivered.", of="delivered"),
    _counter(
        "delayed_undelivered", "messages", "Delayed messages with nowhere to go.", of="undelivered"
    ),
    _gauge(
        "transactions_open",
        "messages",
        "Half messages without an outcome.",
        of="transactions_open",
    ),
    _counter("transactions_ended", "messages", "Half messages with an outcome.", "outcome"),
    _counter(
        "transaction_checks", "requests", "Producers asked for an outcome.", of="transaction_checks"
    ),
    # --- topics and groups, of which there may be thousands: the first ones by name ---
    _gauge("topics", "topics", "Topics, including the broker's own."),
    _gauge("queues", "queues", "Consume queues."),
    _gauge("groups", "groups", "Consumer groups."),
    _counter("topic_messages", "messages", "Messages that the topic has had.", "topic"),
    _gauge("topic_stored_messages", "messages", "Messages that the topic still holds.", "topic"),
    _gauge(
        "group_lag_messages", "messages", "Messages that the group still has to handle.", "group"
    ),
    _gauge(
        "series_left_out",
        "series",
        "Topics or groups without series of their own, because there are too many.",
        "of",
    ),
    # --- the monitor itself ---
    _counter("monitor_requests", "requests", "HTTP requests that the monitor has answered."),
)

BY_NAME = {metric.name: metric for metric in METRICS}
# Positions that no graph can use: times, marks, and requests of one actor to another.
NOT_SHOWN = frozenset(
    {
        *("append_wanted", "wrote_timestamp", "flush_wanted", "unsaved_offsets", "topic_changes"),
        *("deleted_topics", "queued", "dispatched_record", "forgotten_topics", "run_began"),
        *("delay_floor", "delay_sent", "delay_over", "recalled"),
        *("client_pulls", "client_filtered_pulls"),
    }
)

assert len(BY_NAME) == len(METRICS), "a metric is declared once"


def document() -> str:
    """The contents of docs/metrics.md, which a test compares."""
    rows = [
        f"| `{each.name}` | {each.kind} | {each.unit} | {' '.join(each.labels)} | {each.sentence} |"
        for each in METRICS
    ]
    return "\n".join((_HEAD, *rows, ""))


_HEAD = """\
# Metrics

These are the metrics of `/metrics` of a broker's monitor, in Prometheus' text format: see
[monitoring.md](monitoring.md). This page, `/metrics` and the Grafana board are made from one table.

A number that cannot be known is left out; it is never shown as 0. The first 500 topics and groups
by name have a series each, and `penstock_series_left_out` says how many have none. Histograms have
a bucket for each doubling from 32 us on.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|"""
