"""What the RocketMQ Dashboard and the Prometheus exporter are told: as by a real broker."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.takes(60)

TOPIC, GROUP, IDLE, QUEUES, MESSAGES = "orders", "billing", "idle", 4, 12
WAIT_S = 120
# which of them were given back once
FAIL = {"fail": "1"}
PATTERNS = (
    (r"(?<=Ratio_)[^\"]+(?=/store)", "PLACE"),
    (r"(?:\d{1,3}\.){3}\d{1,3}(?:@[0-9#]+)?(?::\d+)?", "ADDRESS"),
    (r"\b1[78]\d{11}\b", "0"),
)


def test_the_dashboard_and_the_exporter_are_told_what_a_real_broker_tells(
    both: tuple[Any, Any], java: Callable[..., Any]
) -> None:
    with ThreadPoolExecutor(2) as at_once:
        ours, theirs = at_once.map(lambda place: told(place, java(place), java(place)), both)
    table, real = (each.pop("fetchBrokerRuntimeStats") for each in (ours, theirs))
    # each key that the exporter reads as a number is one
    assert {name for name in real if name not in table} == set()
    # some are null in a broker's first minute, and these two were not started together
    counted = {name for name in real if "null" not in (real[name], table[name])}
    assert {name: table[name] for name in counted if kind(table[name]) != kind(real[name])} == {}
    for each in (ours, theirs):
        # a broker's own topics are others, and a real one of 5.3.3 takes a topic for a group
        each["fetchAllTopicList"] = sorted({TOPIC} & {*each["fetchAllTopicList"]})
        each["queryTopicConsumeByWho"] = sorted({*each["queryTopicConsumeByWho"]} - {TOPIC})
        each["messageTrackDetail"] = sorted(
            (track["consumerGroup"], track["trackType"])
            for track in each["messageTrackDetail"]
            if track["consumerGroup"] != TOPIC
        )
    different = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    assert not different, json.dumps(different, indent=1)


def kind(value: str) -> str:
    """How the exporter reads it: numbers may be several, and as words are what they say."""
    return re.sub(r"-?\d+(\.\d+)?(E-?\d+)?( -?\d+(\.\d+)?)*", "N", value.strip())


def told(place: Any, client: Any, asker: Any) -> dict[str, Any]:
    client.open(place)
    asker.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    orders, receipts = place.file("send.jsonl"), place.file("sent.jsonl")
    rows = [
        {
            "topic": TOPIC,
            "queue": number % QUEUES,
            "body": b64encode(b"%d" % number).decode(),
            "keys": [f"key-{number}"],
            "properties": FAIL if number == 3 else {},
        }
        for number in range(MESSAGES)
    ]
    orders.write_text("".join(json.dumps(row) + "\n" for row in rows))
    client.ask("send", messages=orders, receipts=receipts)
    out, usual = place.file("consumed.jsonl"), {"topics": {TOPIC: "*"}, "level": 1}
    client.ask("consume", group=IDLE, until=MESSAGES, idle_ms=30_000, out=out, **usual)
    # it ends when the asker has had it consume one directly
    order = {"group": GROUP, "until": MESSAGES + 1, "idle_ms": 240_000}
    client.begin("consume", out=place.file("consumed.jsonl"), **order, **usual)
    said = await_counts(asker)
    asked = {"topic": TOPIC, "group": GROUP, "cluster": "interop"}
    said |= asker.ask("tools", idle=IDLE, made="made", key="key-3", **asked)
    client.finish()
    for each in (asker, client):
        each.ask("close")
    text = json.dumps(said, sort_keys=True)
    for pattern, name in PATTERNS:
        text = re.sub(pattern, name, text)
    plain: dict[str, Any] = json.loads(text)
    return plain


def await_counts(asker: Any) -> dict[str, Any]:
    """What is counted, once it is; of rates only whether there are any."""
    until = time.monotonic() + WAIT_S
    while True:
        said: dict[str, Any] = asker.ask("counts", topic=TOPIC, group=GROUP, cluster="interop")
        sums = {
            name: value if isinstance(value, str) else value["statsMinute"]["sum"]
            for name, value in said.items()
            if "_" in name
        }
        rates = [value["statsMinute"]["tps"] for value in said.values() if "statsMinute" in value]
        rates.append(said["examineConsumeStats"]["consumeTps"])
        progress = said["examineConsumeStats"]["offsetTable"].values()
        is_done = all(row["consumerOffset"] == row["brokerOffset"] for row in progress)
        if sums.get("GROUP_GET_NUMS") == MESSAGES and is_done and all(rates):
            break
        assert time.monotonic() < until, said
        time.sleep(0.5)
    # how many of these there are is the broker's own
    for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
        assert sums.pop(name) >= MESSAGES
    del said["examineConsumeStats"]["consumeTps"]
    return {name: said[name] for name in said if "_" not in name} | sums
