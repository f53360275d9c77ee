"""Stores written by the real RocketMQ classes, read by our offline tools. See README.md."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.shared.formats.checkpoint import decode_checkpoint, encode_checkpoint
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC, delay_due_ms
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.properties import DELAY, TAGS, decode_properties
from penstock.shared.formats.queue_entry import ENTRY, tags_code
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_layout import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_COMPRESSED,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
)
from penstock.shared.index.directory import index_files
from penstock.shared.layout import StorePaths
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import store_sizes

HERE = Path(__file__).parent
SEGMENT_BYTES = 16 * 1024
QUEUE_SEGMENT_BYTES = 50 * 20
INDEX_GEOMETRY = Geometry(slots=50, items=200)

Run = Callable[..., tuple[int, str]]

# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@dataclass(frozen=True)
class Golden:
    """One archive, unpacked."""

    name: str
    store: Path
    manifest: list[dict[str, Any]]
    log: bytes  # all segments, one after the other

    def record(self, line: dict[str, Any]) -> bytes:
        return self.log[line["physical_offset"] : line["physical_offset"] + line["size"]]


BY_CLASSES = ["clean-5.3", "crashed-5.3", "ipv6-5.3", "clean-4.9"]
BY_BROKERS = ["broker-5.3", "broker-crc-5.3"]


@pytest.fixture(params=BY_CLASSES + BY_BROKERS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, **SAFELY)
    manifest = (tmp_path / "manifest.jsonl").read_text("utf-8")
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    return Golden(
        request.param,
        tmp_path / "store",
        [json.loads(line) for line in manifest.splitlines()],
        b"".join(segment.read_bytes() for segment in segments),
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: its exit code and its output."""

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return code, capsys.readouterr().out

    return call


def test_verify_finds_every_message_and_nothing_wrong(golden: Golden, run: Run) -> None:
    code, output = run("store", "verify", golden.store, "-o", "json")
    found = json.loads(output)
    assert found["problems"] == []
    assert found["ok"] is True
    assert found["messages"] == len(golden.manifest)
    assert code == 0


def test_inspect_prints_each_message_as_rocketmq_reads_it(golden: Golden, run: Run) -> None:
    code, output = run("store", "inspect", golden.store, "-o", "json")
    assert code == 0
    assert [json.loads(line) for line in output.splitlines()] == golden.manifest


def test_looking_at_a_store_changes_nothing_in_it(golden: Golden, run: Run) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in golden.store.rglob("*") if path.is_file()}

    before = contents()
    run("store", "verify", golden.store)
    run("store", "inspect", golden.store)
    assert contents() == before


def test_a_decoded_record_encodes_to_the_same_bytes(golden: Golden) -> None:
    for line in golden.manifest:
        raw = golden.record(line)
        record = decode_record(raw)
        assert (record.total_size, record.physical_offset) == (len(raw), line["physical_offset"])
        assert encode_record(record) == raw


def test_queue_entries_recomputed_from_the_records_are_those_rocketmq_wrote(golden: Golden) -> None:
    expected: dict[tuple[str, str], bytes] = {}
    for line in golden.manifest:
        record = decode_record(golden.record(line))
        if record.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_TRANSACTION_COMMIT):
            continue
        properties = decode_properties(record.properties)
        code = tags_code(properties.get(TAGS, ""))
        if record.topic == SCHEDULE_TOPIC:
            code = delay_due_ms(int(properties[DELAY]), record.store_timestamp_ms)
        queue = (record.topic, str(record.queue_id))
        entry = ENTRY.pack(record.physical_offset, record.total_size, code)
        expected[queue] = expected.get(queue, b"") + entry

    written = {}
    for directory in (golden.store / "consumequeue").glob("*/*"):
        raw = b"".join(segment.read_bytes() for segment in sorted(directory.iterdir()))
        queue = (directory.parent.name, directory.name)
        wanted = len(expected.get(queue, b""))
        written[queue] = raw[:wanted]
        assert not any(raw[wanted:]), f"entries of {queue} that belong to no record"
    assert written == expected


def test_an_index_rebuilt_from_the_log_is_the_one_rocketmq_wrote(
    golden: Golden, tmp_path: Path
) -> None:
    """Byte for byte, over roll-overs too. The crashed one was halted before any recovery, so it
    has no key twice either; names are the time of making, so files are compared in their order."""
    (tmp_path / "half-made").mkdir()
    with StoreDirectory(golden.store) as store:
        rebuilt = rebuild_index(
            store, tmp_path / "index", tmp_path / "half-made", INDEX_GEOMETRY, lambda: 0
        )
    written, ours = (
        [path.read_bytes() for path in index_files(directory)]
        for directory in (golden.store / "index", tmp_path / "index")
    )
    assert ours == written
    expected = {"ipv6-5.3": 1, "broker-5.3": 2, "broker-crc-5.3": 2}.get(golden.name, 3)
    assert len(ours) == rebuilt.files == expected


def test_the_sizes_of_its_files_are_found_by_looking(golden: Golden) -> None:
    found = store_sizes(StorePaths(golden.store))
    assert [size.value for size in found.values()] == [
        SEGMENT_BYTES,
        QUEUE_SEGMENT_BYTES,
        *INDEX_GEOMETRY,
    ]


def test_rebuilt_queues_are_those_rocketmq_wrote_byte_for_byte(golden: Golden, run: Run) -> None:
    def contents() -> dict[Path, bytes]:
        queues = golden.store / "consumequeue"
        return {path: path.read_bytes() for path in queues.rglob("*") if path.is_file()}

    before = contents()
    for path in before:
        path.write_bytes(bytes(len(before[path])))
    code, output = run("store", "rebuild", golden.store, "-o", "json")
    assert code == 0
    found = json.loads(output)
    assert contents() == before
    assert found["messages"] == len(golden.manifest)
    assert found["entries"] == sum(-(-len(raw.rstrip(b"\0")) // 20) for raw in before.values())
    assert run("store", "verify", golden.store)[0] == 0


def test_a_damaged_store_of_rocketmq_is_repaired_with_everything_else_as_it_was(
    golden: Golden, run: Run
) -> None:
    lines = [line for line in golden.manifest if line["topic"] == "orders"]
    lost = [lines[1], lines[len(lines) // 2], lines[-1]]
    for line in lost:
        base = line["physical_offset"] - line["physical_offset"] % SEGMENT_BYTES
        segment = golden.store / "commitlog" / f"{base:020d}"
        raw = bytearray(segment.read_bytes())
        raw[line["physical_offset"] - base + 6] ^= 1
        segment.write_bytes(raw)
    assert run("store", "repair", golden.store)[0] == 1
    assert run("store", "repair", golden.store, "--apply")[0] == 0
    assert run("store", "repair", golden.store)[0] == 0
    code, output = run("store", "verify", golden.store, "-o", "json")
    assert json.loads(output)["problems"] == []
    rows = map(json.loads, run("store", "inspect", golden.store, "-o", "json")[1].splitlines())
    found = {row["physical_offset"]: row for row in rows}
    if golden.name.startswith("crashed"):
        lost.pop()  # a torn tail, as a crash leaves one: cut
    for line in golden.manifest:
        if line in lost:
            row = found[line["physical_offset"]]
            assert row["properties"]["PENSTOCK_LOST"] == "true"
            assert [row[k] for k in ("topic", "queue_id", "queue_offset", "size")] == [
                line[k] for k in ("topic", "queue_id", "queue_offset", "size")
            ]
        elif line != lines[-1]:
            assert found[line["physical_offset"]] == line


def test_the_checkpoint_decodes_and_encodes_to_the_same_page(golden: Golden) -> None:
    raw = (golden.store / "checkpoint").read_bytes()
    checkpoint = decode_checkpoint(raw)
    assert encode_checkpoint(checkpoint) == raw
    newest = golden.manifest[-1]["store_timestamp_ms"]
    assert 0 <= checkpoint.physic_timestamp_ms <= newest
    assert 0 <= checkpoint.index_timestamp_ms <= newest
    if golden.name != "crashed-5.3":
        assert checkpoint.logics_timestamp_ms == newest


def test_the_archive_holds_what_the_readme_promises(golden: Golden) -> None:
    """Sizes and ends of all; then what is in those that the store's classes wrote."""
    logs = [path.stat().st_size for path in (golden.store / "commitlog").iterdir()]
    queue_0 = [path.stat().st_size for path in (golden.store / "consumequeue/orders/0").iterdir()]
    assert logs == [SEGMENT_BYTES] * len(logs)
    assert queue_0 == [QUEUE_SEGMENT_BYTES] * 2
    assert (golden.store / "abort").exists() == golden.name.startswith("crashed")

    records = [decode_record(golden.record(line)) for line in golden.manifest]
    ends = {record.physical_offset + record.total_size for record in records}
    blanks = [end for end in ends if BLANK.unpack_from(golden.log, end)[1] == MAGIC_BLANK]
    assert len(blanks) == (golden.manifest[-1]["physical_offset"] // SEGMENT_BYTES)
    assert all(record.properties[-1:] != b"\x02" for record in records) == ("4.9" in golden.name)
    if golden.name in BY_BROKERS:
        _check_broker(golden, records)
        return
    if golden.name.startswith("ipv6"):
        assert {len(record.store_host) for record in records} == {20}
        assert {len(record.born_host) for record in records} == {8, 20}
        return
    assert len(blanks) >= 3
    magics = {record.magic for record in records}
    assert magics == ({MAGIC_V1} if "4.9" in golden.name else {MAGIC_V1, MAGIC_V2})
    assert {len(record.born_host) for record in records} == {8, 20}
    assert {record.sys_flag & SYS_TRANSACTION_MASK for record in records} == {0, 4, 8, 12}
    assert {"中文标签", "🚀😀", None} <= {line["tags"] for line in golden.manifest}


def _check_broker(golden: Golden, records: list[Record]) -> None:
    """A broker's own doing: batches, compression, delays, transactions, what was sent back."""
    count = Counter(record.topic for record in records)
    assert count == {
        "orders": 111,
        "batched": 5,
        "compressed": 3,
        "later": 1,
        "transacted": 1,
        SCHEDULE_TOPIC: 4,
        "RMQ_SYS_TRANS_HALF_TOPIC": 3,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "%RETRY%billing": 2,
        "%DLQ%billing": 1,
    }
    flags = {record.sys_flag for record in records if record.sys_flag & SYS_COMPRESSED}
    assert flags == {0x101, 0x201, 0x301}
    ends = {"__CRC32#" in decode_properties(record.properties) for record in records}
    assert ends == {"crc" in golden.name}
