"""Stores that RocketMQ left behind, run: Penstock's broker serves them, and appends to them."""

from __future__ import annotations

import hashlib
import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.maintenance.verify.check import verify_store
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.record_layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK

HERE = Path(__file__).parent
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
# those of all golden stores; a start finds them by looking
SIZES = {
    "mapped_file_size_commit_log_bytes": 16 * 1024,
    "mapped_file_size_consume_queue_bytes": 50 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
APPENDED = 120
DUE_S = 120
# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

Place = tuple[str, int, int]


def _due(lines: list[dict[str, Any]]) -> dict[Place, str]:
    """What waits in the store for a time that is over: where it is delivered, after the others."""
    found = {}
    visible = [line for line in lines if _is_visible(line)]
    for line in visible:
        if line["topic"] != SCHEDULE_TOPIC:
            continue
        topic, key = line["properties"]["REAL_TOPIC"], line["properties"].get("UNIQ_KEY")
        there = [each for each in visible if each["topic"] == topic]
        if all(each["properties"].get("UNIQ_KEY") != key for each in there):
            queue_id = int(line["properties"]["REAL_QID"])
            offset = sum(each["queue_id"] == queue_id for each in there)
            found[topic, queue_id, offset] = line["body_sha256"]
    return found


def _is_visible(line: dict[str, Any]) -> bool:
    """Whether a record has a place in its queue: one of an open or undone transaction has none."""
    return line["sys_flag"] & SYS_TRANSACTION_MASK in (0, SYS_TRANSACTION_COMMIT)


@pytest.mark.parametrize("name", NAMES)
def test_a_broker_serves_what_rocketmq_stored_and_appends_to_it(
    name: str, tmp_path: Path, start_broker: Callable[..., Any]
) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, **SAFELY)
    manifest = (tmp_path / "manifest.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in manifest.splitlines()]
    expected = {
        (line["topic"], line["queue_id"], line["queue_offset"]): line["body_sha256"]
        for line in lines
        if _is_visible(line)
    }
    expected |= _due(lines)
    broker = start_broker(place=tmp_path, **dict.fromkeys(SIZES))
    assert json.loads((tmp_path / "store/penstock/geometry.json").read_text()) == SIZES
    topics = sorted({topic for topic, _, _ in expected})
    until = time.monotonic() + DUE_S
    while (served := _served(broker, topics)) != expected:
        assert time.monotonic() < until, served.keys() ^ expected.keys()

    with Producer(broker.produce) as producer:
        futures = [producer.send("orders", b"%d" % number) for number in range(APPENDED)]
    for number, future in enumerate(futures):
        receipt = future.result(0)
        place = ("orders", receipt.queue_id, receipt.queue_offset)
        assert place not in expected, "an offset is given twice"
        expected[place] = hashlib.sha256(b"%d" % number).hexdigest()
    assert _served(broker, topics) == expected
    broker.stop()
    report = verify_store(tmp_path / "store")
    assert report.ok and report.clean and report.problem_count == 0, report.problems


def _served(broker: Any, topics: list[str]) -> dict[Place, str]:
    """Where each message is, and the digest of what is stored of its body."""
    found = {}
    for topic in topics:
        with Consumer(broker.consume, topic, follow=False) as consumer:
            for message in consumer:
                place = (topic, message.queue_id, message.queue_offset)
                found[place] = hashlib.sha256(message.stored_body).hexdigest()
    return found
