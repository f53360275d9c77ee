"""The audit finds what a check without Spark finds, however the log is cut, and what is planted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from penstock.client import Producer
from penstock.maintenance.verify.check import verify_store
from penstock.maintenance.verify.report import VerifyReport
from penstock.shared.formats.index_layout import HEADER, ITEM
from penstock.shared.formats.record import encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import (
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_OFFSET,
)
from penstock.shared.formats.record_outline import outline
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths, segment_name
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.java import java_home
from penstock.spark.jobs.audit import FINDING, audit_store

GOLDEN = Path(__file__).parent.parent.parent / "golden"
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
PENSTOCK = Path(sys.executable).with_name("penstock")
DICE = random.Random(5)
SLOTS, ITEMS, SEGMENT_BYTES, QUEUE_FILE_BYTES = 100, 900, 256 << 10, 20_000


def same(audited: VerifyReport, verified: VerifyReport) -> None:
    """But for the time that it took, and the order of what was found."""
    reports = [
        replace(each, seconds=0.0, problems=sorted(each.problems, key=repr))
        for each in (audited, verified)
    ]
    assert reports[0] == reports[1]


@pytest.fixture(scope="module")
def written(start_shared_broker: Callable[..., Any]) -> Path:
    """A clean store of 1,600 messages with keys, in small files."""
    broker = start_shared_broker(
        mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
        mapped_file_size_consume_queue_bytes=QUEUE_FILE_BYTES,
        max_hash_slot_num=SLOTS,
        max_index_num=ITEMS,
    )
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 3)
        for number in range(1600):
            body = b"%d" % number + b"." * (number % 700)
            producer.send("orders", body, keys=f"k{number}", tags=f"t{number % 5}")
    assert broker.stop() == 0
    return Path(broker.store)


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.tar.xz")), ids=lambda path: path.name)
def test_the_audit_of_a_golden_store_is_that_of_a_check(
    spark: SparkSession, tmp_path: Path, golden: Path
) -> None:
    with tarfile.open(golden) as packed:
        packed.extractall(tmp_path, **SAFELY)
    (root,) = [path.parent for path in tmp_path.rglob("commitlog")]
    audit = audit_store(spark, root, part_bytes=10_000)
    same(audit.report, verify_store(root))
    assert audit.report.ok and audit.findings.count() == 0


def test_every_store_is_cut_into_parts_and_nothing_is_found_in_a_clean_one(
    spark: SparkSession, written: Path
) -> None:
    told: list[tuple[int, int]] = []
    audit = audit_store(
        spark, written, part_bytes=20_000, progress=lambda *moved: told.append(moved)
    )
    same(audit.report, verify_store(written))
    assert audit.report.problems == [] and audit.report.messages == 1600
    assert told[-1][0] == told[-1][1] > 0


def test_a_log_without_a_segment_is_audited_as_it_is_checked(
    spark: SparkSession, store_builder: Callable[..., Path]
) -> None:
    root = store_builder([])
    audit = audit_store(spark, root)
    same(audit.report, verify_store(root))
    assert audit.report.ok and audit.report.messages == audit.findings.count() == 0


def test_a_body_that_holds_a_record_of_its_own_place_does_not_mislead(
    spark: SparkSession, store_builder: Callable[..., Path], make_record: Callable[..., Any]
) -> None:
    # a record within a body, which names the very offset at which it stands
    outer = make_record(body=b"")
    at = len(encode_record(outer)) - len(outer.topic) - 1 - 2
    inner = encode_record(replace(make_record(body=b"x" * 300), physical_offset=at))
    root = store_builder([make_record(body=inner), *[make_record()] * 60], segment_bytes=1 << 16)
    for part_bytes in (60, 500):
        same(audit_store(spark, root, part_bytes=part_bytes).report, verify_store(root))
    assert verify_store(root).ok


class Place(NamedTuple):
    """A record, and where its entry is."""

    position: int
    size: int
    queue_id: int
    queue_offset: int


class Planted(NamedTuple):
    kind: str
    finding: str
    # of the finding: log offset, or file and byte
    position: int | None
    at: tuple[Path, int] | None


def places(root: Path) -> list[Place]:
    found = []
    with StoreDirectory(root) as store:
        for position, kind, size, record, _ in store.scan_log():
            if kind is Kind.RECORD and (fields := outline(record)).topic == b"orders":
                found.append(Place(position, size, fields.queue_id, fields.queue_offset))
    return found


def change(path: Path, at: int, count: int, dice: random.Random) -> None:
    """Other bytes than those that are there, and small ones: a size stays a size."""
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        file.write(old[:-1] + bytes([old[-1] ^ dice.randrange(1, 128)]))


def plant(root: Path, kind: str, place: Place, dice: random.Random) -> Planted:
    paths = StorePaths(root)
    base = place.position - place.position % SEGMENT_BYTES
    log = paths.commit_log / segment_name(base), place.position - base
    slot_at = place.queue_offset * CQ_ENTRY_BYTES
    queue_base = slot_at - slot_at % QUEUE_FILE_BYTES
    queue = paths.queue("orders", place.queue_id) / segment_name(queue_base), slot_at - queue_base
    in_record = {
        "size": 3,
        "magic": AT_MAGIC,
        "physical offset": AT_PHYSICAL_OFFSET + 6,
        "body": 90,
        "queue offset": AT_QUEUE_OFFSET + 6,
    }
    if kind in in_record:
        change(log[0], log[1] + in_record[kind], 1, dice)
        finding = "queue-offset" if kind == "queue offset" else "log-damaged"
        return Planted(kind, finding, place.position, None)
    in_entry = {"entry's offset": 7, "entry's size": 11, "entry's tags code": 19}
    change(queue[0], queue[1] + in_entry[kind], 1, dice)
    return Planted(kind, "queue-entry-differs", place.position, queue)


def plant_in_index(root: Path, kind: str, number: int, dice: random.Random) -> Planted:
    files = sorted((root / "index").iterdir())
    file = files[number % 2]
    item = 5 + 7 * number
    at = HEADER.size + 4 * SLOTS + ITEM.size * item
    if kind == "item's hash":
        change(file, at + 3, 1, dice)
        return Planted(kind, "index-item", None, (file, at))
    change(file, at + ITEM.size - 1, 1, dice)
    return Planted(kind, "index-chain", None, (file, at + ITEM.size - 4))


def test_a_hundred_planted_defects_of_ten_kinds_are_found(
    spark: SparkSession, written: Path, tmp_path: Path
) -> None:
    dice = random.Random(15)
    root = shutil.copytree(written, tmp_path / "store")
    kinds = ["size", "magic", "physical offset", "body", "queue offset"]
    kinds += ["entry's offset", "entry's size", "entry's tags code"]
    # no two side by side, so that each is its own finding; and no body that is too short
    chosen = [place for place in places(root)[3:-3:3] if place.size > 300]
    chosen = dice.sample(chosen, 10 * len(kinds))
    planted = [plant(root, kind, chosen.pop(), dice) for kind in kinds for _ in range(10)]
    for kind in ("item's hash", "item's chain"):
        planted += [plant_in_index(root, kind, n + 40 * (kind[7] == "c"), dice) for n in range(10)]
    assert len(planted) == 100 and len({each.kind for each in planted}) == 10

    audit = audit_store(spark, root, part_bytes=30_000)
    found = audit.findings.collect()
    assert audit.findings.schema.simpleString() == f"struct<{FINDING.replace(' ', ':')}>".replace(
        ",:", ","
    )
    by_position = {(row.kind, row.position) for row in found}
    by_place = {(row.kind, row.file, row.offset) for row in found}
    missed = [
        each
        for each in planted
        if (each.finding, each.position) not in by_position
        and (each.at is None or (each.finding, str(each.at[0]), each.at[1]) not in by_place)
    ]
    assert missed == []
    assert not audit.report.ok and audit.report.log_damaged
    kinds_of = {problem.kind for problem in verify_store(root).problems}
    assert {row.kind for row in found} == kinds_of


def test_spark_submit_runs_the_command(written: Path, tmp_path: Path) -> None:
    root = shutil.copytree(written, tmp_path / "store")
    damaged = plant(root, "body", next(each for each in places(root) if each.size > 300), DICE)
    said = subprocess.run([PENSTOCK, "spark", "script"], capture_output=True, text=True, check=True)
    # as short-lived as those that the product starts by itself
    options = ["--driver-java-options", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"]
    options += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    command = [PENSTOCK.with_name("spark-submit"), "--master", "local[2]", *options]
    command += [said.stdout.strip()]
    ran = subprocess.run(
        [*command, "audit", str(root), "-o", "json"],
        env={**os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 5, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert [each["kind"] for each in report["problems"]].count("log-damaged") == 1
    assert damaged.position in [each["position"] for each in report["problems"]]
