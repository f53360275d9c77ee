"""An archive has each message of a store once, whoever is killed; and says so when it has not.

Tasks run in this process: what Spark adds is in test_jobs.py.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.shared.errors import ConfigError, OffsetOutOfRange, StoreDamaged, StoreLocked
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import encode_record
from penstock.shared.formats.tombstone import LostMessage, lay_out
from penstock.shared.layout import segment_name
from penstock.shared.log.archived import load_archived
from penstock.spark.jobs.archive import ArchiveDone, archive_store, holes_in
from penstock.spark.jobs.archive_check import ArchiveReport, verify_archive
from penstock.spark.jobs.manifest import Manifest, archive_to_write
from tests.spark.conftest import STORED_MS, StoreBuilder

DAY_MS = 86_400_000
POINTS = ("archive.written", "archive.moved", "archive.placed", "archive.listed")
Row = tuple[str, int, int]


def fill(store: StoreBuilder, messages: int, day: int = 0, seed: int = 3) -> list[Row]:
    dice = random.Random(seed)
    put = []
    for number in range(messages):
        record = store.put(
            dice.choice(["flights", "orders", "%RETRY%billing"]),
            dice.randrange(3),
            dice.randbytes(dice.choice([0, 10, 900])),
            {"TAGS": dice.choice("ab"), "KEYS": f"k{number}", "own": "x"},
            store_timestamp_ms=STORED_MS + day * DAY_MS + number,
        )
        put.append((record.topic, record.queue_id, record.queue_offset))
    return put


def archived(root: Path) -> list[Row]:
    """What any reader of Parquet finds."""
    files = sorted(root.glob("topic=*/day=*/*.parquet"))
    rows: list[Row] = []
    for file in files:
        topic = file.parent.parent.name.removeprefix("topic=").replace("%25", "%")
        table = pq.ParquetFile(file).read(columns=["queue_id", "queue_offset"])
        columns = table["queue_id"].to_pylist(), table["queue_offset"].to_pylist()
        rows += [(topic, *each) for each in zip(*columns, strict=True)]
    return sorted(rows)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def archive(store: StoreBuilder, place: Path, **options: Any) -> ArchiveDone:
    return archive_store(None, store.root, place, split_bytes=20_000, **options)


def check(store: StoreBuilder, place: Path) -> ArchiveReport:
    return verify_archive(None, place, store.root)


def test_each_run_adds_what_is_new_by_topic_and_day(store: StoreBuilder, place: Path) -> None:
    put = fill(store, 300)
    told: list[tuple[int, int]] = []
    done = archive(store, place, progress=lambda *moved: told.append(moved))
    assert (done.run, done.messages, done.queues, done.lost) == (1, 300, 9, 0)
    assert archived(place) == sorted(put) and told[-1][0] == told[-1][1] > 0 and len(told) > 3

    again = archive(store, place)
    assert (again.run, again.messages, again.files) == (1, 0, 0)

    put += fill(store, 200, day=1, seed=4)
    assert archive(store, place).messages == 200
    assert archived(place) == sorted(put)
    days = {path.name for path in place.glob("topic=*/day=*")}
    assert days == {"day=2023-11-14", "day=2023-11-15"}
    report = check(store, place)
    assert report.ok and report.compared == report.messages == 500 and report.runs == 2
    assert not any((place / "_penstock").glob("staging*"))


def test_the_columns_are_those_of_the_source(store: StoreBuilder, place: Path) -> None:
    store.put("orders", 1, b"body", {"TAGS": "t", "KEYS": "a b", "own": "x"})
    archive(store, place)
    (file,) = place.glob("topic=orders/day=*/*.parquet")
    (row,) = pq.ParquetFile(file).read().to_pylist()
    assert row["queue_id"] == 1 and row["queue_offset"] == 0 and row["body"] == b"body"
    assert (row["keys"], row["tags"]) == ("a b", "t")
    assert dict(row["properties"]) == {"TAGS": "t", "KEYS": "a b", "own": "x"}
    assert row["store_timestamp"].timestamp() * 1000 == STORED_MS


def test_a_clock_that_was_set_back_costs_nothing(store: StoreBuilder, place: Path) -> None:
    for day in (0, 1, 0, 1, 2):
        for number in range(20):
            at_ms = STORED_MS + day * DAY_MS + number
            store.put("orders", number % 2, store_timestamp_ms=at_ms)
    assert archive(store, place).files == 3
    report = check(store, place)
    assert report.ok and report.compared == 100


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_leaves_nothing_twice(
    store: StoreBuilder, place: Path, point: str
) -> None:
    put = fill(store, 150)
    archive(store, place)
    put += fill(store, 150, seed=5)
    job = (
        "from penstock.spark.jobs.archive import archive_store\n"
        f"archive_store(None, {store.root!r}, {str(place)!r}, split_bytes=20_000)"
    )
    armed = {
        **os.environ,
        "PENSTOCK_FAULTS": f"{point}=crash@{3 if point.endswith('moved') else 1}",
    }
    ran = subprocess.run([sys.executable, "-c", job], env=armed)
    assert ran.returncode == -signal.SIGKILL
    left = archived(place)
    assert len(left) == len(set(left)), "at no time anything is there twice"
    assert (left == sorted(put)) == (point in ("archive.placed", "archive.listed"))

    put += fill(store, 50, seed=6)  # so that the next run has other files
    archive(store, place)
    assert archived(place) == sorted(put)
    report = check(store, place)
    assert report.ok and report.compared == 350 and report.runs == 2 + (point == "archive.listed")


def test_what_has_expired_is_verified_by_what_was_written(store: StoreBuilder, place: Path) -> None:
    fill(store, 400)
    archive(store, place)
    (store.paths.commit_log / segment_name(0)).unlink()
    report = check(store, place)
    assert report.ok and 0 < report.compared < 400 == report.messages
    assert verify_archive(None, place).compared == 0


def test_messages_that_expired_unarchived_are_an_error_until_accepted(
    store: StoreBuilder, place: Path
) -> None:
    fill(store, 30)
    archive(store, place)
    fill(store, 500)
    (store.paths.commit_log / segment_name(0)).unlink()
    (store.paths.commit_log / segment_name(1 << 16)).unlink()
    before = archived(place)
    with pytest.raises(OffsetOutOfRange, match="--accept-gaps"):
        archive(store, place)
    assert archived(place) == before
    done = archive(store, place, accept_gaps=True)
    report = check(store, place)
    assert report.ok and report.expired == done.expired > 0
    assert report.messages + report.expired == 530


def test_lost_messages_are_holes_and_damaged_ones_an_error_until_dropped(
    store: StoreBuilder, place: Path
) -> None:
    fill(store, 20)
    for number in range(9):
        if number in (3, 4):
            store.put_entry("orders", 7, store.position, 100)  # as of a lost message
        else:
            record = store.put("orders", 7, b"%d" % number * 90)
    store.write_log(record.physical_offset + 95, b"?")
    with pytest.raises(StoreDamaged):
        archive(store, place)
    assert archived(place) == []
    done = archive(store, place, drop_damaged=True)
    assert done.lost == 3
    (queue,) = [each for each in Manifest(place).runs[0].queues if each.queue_id == 7]
    assert queue.holes == [(3, 5), (8, 9)] and queue.position == -1
    report = verify_archive(None, place)
    assert report.ok and report.lost == 3


def test_an_archive_goes_on_after_a_repair_of_what_it_has(store: StoreBuilder, place: Path) -> None:
    fill(store, 30)
    lost = [store.put("orders", 7, b"%d" % number * 200) for number in range(2)]
    archive(store, place)
    # tombstones of other sizes than the messages, so the last one is at another place
    sizes = [len(encode_record(each)) for each in lost]
    slots = [LostMessage("orders", 7, each.queue_offset) for each in lost]
    pieces = lay_out(lost[0].physical_offset, sum(sizes), False, slots, STORED_MS)
    store.next_offset["orders", 7] = at = 0
    for piece in pieces:
        position = lost[0].physical_offset + at
        store.write_log(position, piece)
        store.put_entry("orders", 7, position, len(piece))
        at += len(piece)
    assert len(pieces[0]) != sizes[0]
    report = check(store, place)
    assert report.ok and report.compared == 30 and report.messages == 32
    store.put("orders", 7, b"new")
    assert archive(store, place).messages == 1


def test_another_queue_of_the_same_name_is_refused(
    store: StoreBuilder, place: Path, tmp_path: Path
) -> None:
    fill(store, 60)
    archive(store, place)
    shorter, other = StoreBuilder(tmp_path / "shorter"), StoreBuilder(tmp_path / "other")
    fill(shorter, 20)
    fill(other, 90, seed=9)
    for each in (shorter, other):
        with pytest.raises(ConfigError, match="another queue"):
            archive(each, place)
    assert check(store, place).ok


def test_the_store_is_told_how_far_only_where_all_of_it_is_archived(
    store: StoreBuilder, place: Path
) -> None:
    fill(store, 60)
    store.put("rmq_sys_penstock_staging", 0, b"not for an archive")
    store.put("RMQ_SYS_TRACE_TOPIC", 0, b"a user's")
    store.put("TRANS_CHECK_MAX_TIME_TOPIC", 0, b"a user's")
    store.paths.own.mkdir()
    assert archive(store, place, topics=["orders"]).archived_to == -1
    assert load_archived(store.paths) is None
    done = archive(store, place)
    assert {"RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"} < {
        topic for topic, *_ in archived(place)
    }
    told = load_archived(store.paths)
    assert told is not None and told.log_offset == done.archived_to and told.archive == str(place)
    last = max(
        ENTRY.unpack((directory / segment_name(0)).read_bytes()[at : at + ENTRY.size])[0]
        for directory in store.paths.consume_queue.glob("[!r]*/*")
        for at in range(0, 2000, ENTRY.size)
    )
    assert last < done.archived_to <= store.position
    archive(store, place.with_name("trial"))  # may not have more expire than the first one has
    assert load_archived(store.paths) == told
    store.paths.abort.touch()  # a broker that runs and tells nobody how far its queues are
    assert archive(store, place).archived_to == -1
    assert load_archived(store.paths) == told


def change(path: Path, at: int = 200) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_each_kind_of_damage_to_an_archive_is_found(store: StoreBuilder, place: Path) -> None:
    fill(store, 200)
    archive(store, place)
    first, second, third, *_ = (place / file.path for file in Manifest(place).files)
    listed = place / "_penstock" / "run-000001.json"
    run = msgspec.json.decode(listed.read_bytes())

    def found() -> set[str]:
        return {each.kind for each in check(store, place).findings}

    assert found() == set()
    kept = first.read_bytes()
    change(first)
    assert found() == {"file-differs"}
    first.write_bytes(kept)
    second.rename(second.with_name("hidden"))
    assert found() == {"file-missing"}
    second.with_name("hidden").rename(second)

    gone = {**run, "files": run["files"][1:]}
    listed.write_bytes(msgspec.json.encode(gone))
    assert found() == {"offsets-missing"}
    twice = {**run, "files": [*run["files"], run["files"][0]]}
    listed.write_bytes(msgspec.json.encode(twice))
    assert found() == {"offsets-twice"}
    wrong = [{**run["files"][0], "stretches": [[0, 5, 6]]}, *run["files"][1:]]
    listed.write_bytes(msgspec.json.encode({**run, "files": wrong}))
    assert "rows-differ" in found()
    listed.write_bytes(msgspec.json.encode(run))

    # a body that is another one, with the file's own digest set right
    from penstock.spark.jobs.manifest import digest_of

    table = pq.ParquetFile(third).read()
    bodies = pc.binary_replace_slice(table["body"], 0, 0, b"!")
    at = table.schema.get_field_index("body")
    pq.write_table(table.set_column(at, table.schema.field(at), bodies), third)
    files = [
        {**file, "size_bytes": third.stat().st_size, "digest": digest_of(third)}
        if place / file["path"] == third
        else file
        for file in run["files"]
    ]
    listed.write_bytes(msgspec.json.encode({**run, "files": files}))
    assert found() == {"store-differs"}
    assert pa.types.is_binary(bodies.type)


def test_a_store_without_queues_is_not_archived_as_an_empty_one(
    store: StoreBuilder, place: Path
) -> None:
    fill(store, 30)
    shutil.rmtree(store.paths.consume_queue)
    with pytest.raises(ConfigError, match="consume queues.*penstock store rebuild"):
        archive(store, place)
    assert archived(place) == [] and load_archived(store.paths) is None


def test_what_is_no_archive_is_left_alone(store: StoreBuilder, place: Path) -> None:
    fill(store, 5)
    place.mkdir()
    (place / "mine").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no archive"):
        archive(store, place)
    assert sorted(place.iterdir()) == [place / "mine"]
    with pytest.raises(ConfigError, match="penstock spark archive"):
        check(store, place)


def test_one_job_at_a_time_writes_into_an_archive(store: StoreBuilder, place: Path) -> None:
    fill(store, 5)
    with archive_to_write(place), pytest.raises(StoreLocked):
        archive(store, place)
    assert archive(store, place).messages == 5


def test_a_lost_list_of_a_run_ends_the_job_before_anything_is_removed(
    store: StoreBuilder, place: Path
) -> None:
    for seed in range(3):
        fill(store, 40, seed=seed)
        archive(store, place)
    before = archived(place)
    (place / "_penstock" / "run-000002.json").unlink()
    with pytest.raises(StoreDamaged, match=r"run-000002\.json"):
        archive(store, place)
    assert archived(place) == before


def test_a_lost_list_of_the_last_run_is_no_reason_to_remove_its_files(
    store: StoreBuilder, place: Path
) -> None:
    for seed in range(2):
        fill(store, 40, seed=seed)
        archive(store, place)
    before = archived(place)
    (place / "_penstock" / "run-000002.json").unlink()
    fill(store, 400)
    (store.paths.commit_log / segment_name(0)).unlink()
    with pytest.raises(StoreDamaged, match=r"run-000002\.json"):
        archive(store, place, accept_gaps=True)
    assert archived(place) == before


def test_holes_are_what_no_stretch_has() -> None:
    assert holes_in([(4, 6), (0, 2)], 0, 6) == [(2, 4)]
    assert holes_in([], 3, 5) == [(3, 5)]
    assert holes_in([(0, 9)], 0, 9) == []
    assert holes_in([(2, 3)], 1, 9) == [(1, 2), (3, 9)]
