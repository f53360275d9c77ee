"""`penstock trace` on a store of a real broker: what became of what its own client has sent."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2] / "golden"
# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

# how the message is recognised in the manifest: a property that its first record has
WAYS = {
    "delivered": ({"KEYS": "soon"}, ["delayed", "message"], ["delivered", None]),
    "waits": ({"DELAY": "18"}, ["delayed"], ["overdue"]),
    "committed": ({"KEYS": "COMMIT_MESSAGE"}, ["half message", "message"], ["committed", None]),
    # RocketMQ notes that it ended, and not how; nothing was stored for it
    "rolled back": ({"KEYS": "ROLLBACK_MESSAGE"}, ["half message"], ["ended"]),
    "open": ({"KEYS": "UNKNOW"}, ["half message"], ["open"]),
    "given back": (
        {"KEYS": "order-0"},
        ["message", "delayed", "retry"],
        [None, "delivered", None],
    ),
    "dead": ({"KEYS": "order-2"}, ["message", "dead letter"], [None, None]),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("golden")
    with tarfile.open(HERE / "broker-5.3.tar.xz") as archive:
        archive.extractall(made, **SAFELY)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_the_way_of_a_message_of_rocketmqs_client_is_told_to_its_end(
    place: Path, way: str, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    sign, kinds, outcomes = WAYS[way]
    lines = [json.loads(line) for line in (place / "manifest.jsonl").read_text().splitlines()]
    key = next(each["unique_key"] for each in lines if sign.items() <= each["properties"].items())
    # the manifest is RocketMQ's word: all its records with this key, and no other
    stored = [each["physical_offset"] for each in lines if each["unique_key"] == key]
    done = command("trace", key, "--store", place / "store", "-o", "json")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["records"]
    assert [each["physical_offset"] for each in records] == stored
    assert [each["kind"] for each in records] == kinds
    assert [each["outcome"] for each in records] == outcomes
    for before, after in zip(records, records[1:], strict=False):
        assert before["led_to"] in (None, after["physical_offset"])
    if way in ("given back", "dead"):
        assert records[-1]["says"]["origin_topic"] == "orders"
        assert records[-1]["says"]["reconsume_times"] == 1
