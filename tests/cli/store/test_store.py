"""`penstock store`: exit codes, the shape of its JSON, and what a terminal user sees."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import COMMANDS
from penstock.cli.store.info import gather
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET
from penstock.shared.layout import segment_name
from penstock.shared.loops.active import why_pure
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]
Maker = Callable[..., Record]
Command = Callable[..., tuple[int, str, str]]
RETRY = "%RETRY%" + "g" * 130


def _lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_verify_of_a_healthy_store_exits_with_0_and_prints_one_object(
    penstock: Command, root: Path
) -> None:
    code, out, err = penstock("store", "verify", root, "-o", "json")
    (report,) = _lines(out)
    assert (code, err) == (0, "")
    assert (report["ok"], report["messages"], report["problems"]) == (True, 60, [])
    assert report["bytes"] > 60 * 91
    assert report["queues"][0] == {
        "topic": RETRY,
        "queue_id": 0,
        "min_offset": 0,
        "max_offset": 20,
        "messages": 20,
    }


def test_info_and_verify_are_rows_of_what_and_value_in_csv_and_plain(
    penstock: Command, root: Path, flip: Callable[[], None]
) -> None:
    rows = dict(csv.reader(penstock("store", "info", root, "-o", "csv")[1].splitlines()))
    assert (rows["what"], rows["directory"]) == ("value", str(root))
    assert (rows["clean"], rows["problems"]) == ("true", "")
    assert (rows["queues.0.topic"], rows["queues.0.max_offset"]) == (RETRY, "20")
    flip()
    code, out, _ = penstock("store", "verify", root, "-o", "plain")
    cells = dict(line.split("\t") for line in out.splitlines())
    assert (code, cells["ok"]) == (5, "false")
    assert cells["problems.0.file"] == str(root / "commitlog" / segment_name(0))


def test_verify_exits_with_5_when_the_log_is_damaged(
    penstock: Command, root: Path, flip: Callable[[], None]
) -> None:
    flip()
    code, out, _ = penstock("store", "verify", root, "-o", "json")
    (report,) = _lines(out)
    assert (code, report["ok"]) == (5, False)
    damage = report["problems"][0]
    assert set(damage) == {"kind", "file", "offset", "position", "detail"}
    assert damage["file"] == str(root / "commitlog" / segment_name(0))
    assert (damage["offset"], damage["position"]) == (0, 0)
    code, out, _ = penstock("store", "verify", root)
    assert code == 5
    assert f"{segment_name(0)}, byte 0" in out


def test_verify_exits_with_1_for_a_problem_that_can_be_rebuilt(
    penstock: Command, root: Path
) -> None:
    (root / "consumequeue" / "orders" / "0" / "note.txt").write_bytes(b"x")
    assert penstock("store", "verify", root)[0] == 1


def test_a_rebuild_names_the_records_that_are_misplaced(penstock: Command, root: Path) -> None:
    """Their bytes are whole, and it may have left them out: nobody else would say so."""
    with StoreDirectory(root) as store:
        at = [step[0] for step in store.scan_log()][6]
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(at + AT_QUEUE_OFFSET)
        file.write((1 << 40).to_bytes(8, "big"))
    code, out, _ = penstock("store", "rebuild", root, "--queues")
    assert code == 0
    assert f"misplaced: the record at log offset {at} names" in out
    assert f"penstock store repair {root}" in out


@pytest.mark.parametrize("command", ["info", "verify", "inspect"])
def test_a_wrong_directory_is_wrong_usage(penstock: Command, tmp_path: Path, command: str) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        code, out, err = penstock("store", command, directory)
        assert (code, out) == (2, "")
        assert str(directory) in err.replace("\n", "")


def test_info_tells_files_queues_checkpoint_and_state(penstock: Command, root: Path) -> None:
    (root / "abort").write_bytes(b"1")
    (root / "config").mkdir()
    topics = {"topicConfigTable": {"orders": {"writeQueueNums": 2, "readQueueNums": 2}}}
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    (root / "index").mkdir()
    (root / "index" / "20231114221321456").write_bytes(bytes(40 + 4 * 10 + 20 * 8))
    (root / "penstock").mkdir()
    sizes = {"mapped_file_size_commit_log_bytes": 4096, "max_hash_slot_num": 10, "max_index_num": 8}
    (root / "penstock" / "geometry.json").write_text(json.dumps(sizes))
    code, out, _ = penstock("store", "info", root, "-o", "json")
    (found,) = _lines(out)
    assert code == 0
    assert (found["clean"], found["locked_by_pid"], found["log_start"]) == (False, None, 0)
    assert found["log_end"] % 4096 == found["segments"][-1]["used_bytes"] > 0
    assert found["segments"][0] == {"file": segment_name(0), "size": 4096, "used_bytes": 4096}
    assert [queue["max_offset"] for queue in found["queues"]] == [20, 20, 20]
    assert found["checkpoint"]["physic_timestamp_ms"] == 1700000001456 + 59
    assert found["topics"] == {"orders": 2}
    assert found["index_files"][0]["fits_geometry"] is True
    assert [(each["key"], each["value"], each["from"]) for each in found["sizes"]] == [
        ("mapped_file_size_commit_log_bytes", 4096, "penstock/geometry.json"),
        ("mapped_file_size_consume_queue_bytes", 1000, "found in the files"),
        ("max_hash_slot_num", 10, "penstock/geometry.json"),
        ("max_index_num", 8, "penstock/geometry.json"),
    ]
    code, out, _ = penstock("store", "info", root)
    assert code == 0
    assert "not stopped in order" in out and RETRY in out


def test_verify_is_told_of_delay_levels_that_are_not_the_usual_ones(
    penstock: Command, store_builder: Builder, make_record: Maker
) -> None:
    delayed = encode_properties({"DELAY": "3", "REAL_TOPIC": "orders"})
    store = store_builder(
        [make_record(topic=SCHEDULE_TOPIC, queue_id=2, properties=delayed, store_timestamp_ms=1000)]
    )
    (entries,) = (store / "consumequeue" / SCHEDULE_TOPIC / "2").iterdir()
    raw = bytearray(entries.read_bytes())
    raw[12:20] = (1000 + 7000).to_bytes(8, "big")
    entries.write_bytes(raw)
    assert penstock("store", "verify", store)[0] == 1
    assert penstock("store", "verify", store, "--delay-levels", "1s 5s 7s 8s")[0] == 0
    code, _, err = penstock("store", "verify", store, "--delay-levels", "7")
    assert code == 2 and 'as in "1s 5s 2h"' in err


@pytest.mark.parametrize("name", ["checkpoint", "config/topics.json"])
def test_a_file_that_cannot_be_read_is_named_and_no_traceback(
    penstock: Command, root: Path, name: str
) -> None:
    path = root / name
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)  # as root may read everything else
    code, out, err = penstock("store", "info", root)
    assert (code, out) == (1, "")
    assert err.startswith("error: [SERVICE_NOT_AVAILABLE] a file cannot be read") and name in err


def test_info_of_a_store_that_deletes_segments_meanwhile_is_of_what_is_there_then(
    root: Path,
) -> None:
    with StoreDirectory(root) as store:
        last, queues = store.segments[-1], store.queues

        def queues_and_then_a_cleaner() -> list[QueueFiles]:
            found = queues()
            for segment in store.segments[:-1]:
                segment.path.unlink(missing_ok=True)
            return found

        store.queues = queues_and_then_a_cleaner
        found = gather(store)
    assert [segment["file"] for segment in found["segments"]] == [last.path.name]
    assert found["log_start"] == last.base < found["log_end"]


def test_info_names_the_process_that_holds_the_lock(penstock: Command, root: Path) -> None:
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, root / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        _, out, _ = penstock("store", "info", root, "-o", "json")
        assert json.loads(out)["locked_by_pid"] == process.pid


def test_help_imports_no_command_and_nothing_heavy() -> None:
    program = (
        "import sys\nfrom penstock.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'zmq', 'rich', 'msgspec', 'isal'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    output = ended.stdout.decode()
    assert output.splitlines()[-1] == "[]"
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize("command", ["info", "verify", "inspect"])
def test_each_command_explains_itself_with_examples(penstock: Command, command: str) -> None:
    code, out, _ = penstock("store", command, "--help")
    assert code == 0
    assert f"penstock store {command} ./store" in out


def test_an_unknown_command_is_wrong_usage(penstock: Command) -> None:
    code, _, err = penstock("nonsense")
    assert code == 2
    assert "nonsense" in err


def test_the_version_is_printed(penstock: Command) -> None:
    code, out, _ = penstock("--version")
    assert (code, out.split()[0]) == (0, "penstock")


def test_the_version_says_which_loops_run_and_why(penstock: Command) -> None:
    code, out, _ = penstock("version", "-o", "json")
    said = json.loads(out)
    assert (code, said["native"], said["why_pure"]) == (0, not why_pure, why_pure)
    code, out, _ = penstock("version")
    first, second = out.splitlines()
    assert (code, first) == (0, f"penstock {said['version']}, Python {said['python']}")
    assert second == f"native loops: {f'no, {why_pure}' if why_pure else 'yes'}"
