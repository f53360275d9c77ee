"""Makes the golden stores that a real broker writes; see tests/golden/README.md. Not a test.

PENSTOCK_GOLDEN=tests/golden python -m pytest tests/interop/stores/make_golden.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GROUP = "billing"
QUERIES = 1000
KINDS = {
    "broker-5.3": {},
    "broker-crc-5.3": {"enabledAppendPropCRC": "true"},
}
# the sizes of all golden stores, and nothing beside the store that would be large
SIZES = (16 * 1024, 20 * 50, 50, 200)
SMALL = {
    "mappedFileSizeCommitLog": SIZES[0],
    "mappedFileSizeConsumeQueue": SIZES[1],
    "maxHashSlotNum": SIZES[2],
    "maxIndexNum": SIZES[3],
    "timerWheelEnable": "false",
}


def text(body: str) -> str:
    return b64encode(body.encode()).decode()


def messages(dice: random.Random) -> list[dict[str, Any]]:
    """One of each, and enough ordinary ones for a second segment and a second index file."""
    batch = [
        {"topic": "batched", "body": text(f"item {item}"), "tags": "TagB", "keys": [f"item-{item}"]}
        for item in range(5)
    ]
    ordinary = [
        {
            "topic": "orders",
            "queue": number % 2,
            "body": b64encode(dice.randbytes(1 + number)).decode(),
            "tags": ("TagA", "中文标签", "🚀😀")[number % 3],
            "keys": [f"order-{number}", f"customer-{number % 7}"][: 1 + number % 2],
            "properties": {"region": "Zürich"},
            "flag": number,
        }
        for number in range(110)
    ]
    return [
        {"topic": "orders", "queue": 0, "body": text("neither tags nor keys")},
        {"topic": "batched", "queue": 0, "items": batch},
        *(
            {
                "topic": "compressed",
                "queue": 0,
                "body": text("compressed " * 500),
                "compression": how,
            }
            for how in ("ZLIB", "LZ4", "ZSTD")
        ),
        {"topic": "later", "queue": 0, "body": text("soon"), "delay_level": 1, "keys": ["soon"]},
        {"topic": "later", "queue": 0, "body": text("later"), "delay_level": 18},
        *ordinary,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_make(
    kind: str, place: Any, rocketmq: Callable[..., Any], client: Any, sides: Any, make_queries: Any
) -> None:
    server = rocketmq(place, **SMALL, **KINDS[kind])
    client.open(place)
    for topic in ("orders", "batched", "compressed", "later", "transacted"):
        client.ask("create", topic=topic, queues=2 if topic == "orders" else 1)
    for number, each in enumerate(messages(random.Random(1))):
        sides.send(place, [each])
        if number % 20 == 0:
            time.sleep(1.2)  # what is asked by key and time is to find some of it in each second
    transactions, receipts = place.file("transactions"), place.file("receipts")
    with transactions.open("w") as file:
        for outcome in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"):
            wanted = {"topic": "transacted", "body": text(outcome), "outcome": outcome}
            file.write(json.dumps(wanted | {"keys": [outcome]}) + "\n")
    client.ask("transact", messages=transactions, receipts=receipts)
    back = {"topic": "orders", "queue": 0, "group": GROUP}
    client.ask("send_back", offsets=[0, 1], level=1, **back)
    client.ask("send_back", offsets=[2], level=-1, **back)
    for topic in ("later", "transacted", f"%DLQ%{GROUP}", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        sides.await_offset(topic, 0, 1)
    sides.await_offset(f"%RETRY%{GROUP}", 0, 2)
    client.ask("close")
    server.stop()

    rows = sides.opened_by_classes(place, "5.3", SIZES)
    manifest = sorted(rows.values(), key=lambda row: row["physical_offset"])
    (place.directory / "manifest.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in manifest)
    )
    queries = make_queries(rows, QUERIES, seed=7)
    answers = sides.found_by_classes(place, queries, SIZES)
    assert sum(map(len, answers)) > QUERIES / 2
    (place.directory / "queries.jsonl").write_text(
        "".join(
            json.dumps(query | {"offsets": offsets}, separators=(",", ":")) + "\n"
            for query, offsets in zip(queries, answers, strict=True)
        )
    )
    archive = Path(os.environ["PENSTOCK_GOLDEN"]) / f"{kind}.tar.xz"
    # the archive says nothing about the machine that made it
    subprocess.run(
        ["tar", "-C", place.directory, "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]
        + ["--mtime=2026-01-01T00:00:00Z", "--mode=u=rwX,go=rX", "-cJf", archive.resolve()]
        + ["store", "manifest.jsonl", "queries.jsonl"],
        check=True,
    )
