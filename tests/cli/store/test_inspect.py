"""`penstock store inspect`: which records it shows, of what, and in how many processes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.cli.store import log_parts
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import segment_name
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]
Maker = Callable[..., Record]
Command = Callable[..., tuple[int, str, str]]
RETRY = "%RETRY%" + "g" * 130

INSPECT_FIELDS = {
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms",
    "born_timestamp_ms", "born_host", "store_host", "flag", "sys_flag", "reconsume_times", "tags",
    "keys", "unique_key", "message_id", "body_size", "body_sha256", "properties",
}  # fmt: skip


def _lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_inspect_prints_every_record_in_log_order_with_every_field(
    penstock: Command, root: Path
) -> None:
    code, out, err = penstock("store", "inspect", root, "-o", "json")
    rows = _lines(out)
    assert (code, err, len(rows)) == (0, "", 60)
    assert all(set(row) >= INSPECT_FIELDS for row in rows)
    places = [row["physical_offset"] for row in rows]
    assert places == sorted(set(places))
    assert rows[0] | {"physical_offset": 0, "queue_offset": 0} == rows[0]
    assert (rows[0]["tags"], rows[0]["keys"], rows[0]["unique_key"]) == ("中文标签", "k1 k2", "0A")
    assert rows[0]["message_id"] == "C0A8070900002A9F0000000000000000"
    assert rows[0]["body_sha256"] == hashlib.sha256(b"hello world").hexdigest()
    assert rows[0]["born_host"] == "10.1.2.3:54321"
    assert (rows[1]["born_host"], rows[1]["reconsume_times"]) == ("[2001:db8::1]:1", 2)
    assert (rows[1]["tags"], rows[1]["keys"], rows[1]["unique_key"]) == (None, None, None)
    assert "body" not in rows[0]


def test_inspect_shows_bodies_on_request_and_null_where_they_are_no_text(
    penstock: Command, root: Path
) -> None:
    _, out, _ = penstock("store", "inspect", root, "-o", "json", "--body", "--max", 3)
    rows = _lines(out)
    assert [row["body"] for row in rows] == ["hello world", "hello world", None]
    assert base64.b64decode(rows[2]["body_base64"]) == b"\xff\x00"
    assert rows[2]["topic"] == RETRY


@pytest.mark.parametrize("with_queues", [True, False])
def test_inspect_finds_a_queues_records_with_and_without_its_queue_files(
    penstock: Command, root: Path, with_queues: bool
) -> None:
    if not with_queues:
        (root / "consumequeue").rename(root / "elsewhere")
    wanted = ("--topic", "orders", "--queue", 1, "--offset", 5, "--max", 4)
    code, out, _ = penstock("store", "inspect", root, "-o", "json", *wanted)
    rows = _lines(out)
    assert code == 0
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [
        ("orders", 1, offset) for offset in (5, 6, 7, 8)
    ]


def test_inspect_does_not_follow_an_entry_that_is_wrong(penstock: Command, root: Path) -> None:
    with (root / "consumequeue" / "orders" / "1" / segment_name(0)).open("r+b") as file:
        file.seek(100)
        file.write((1234).to_bytes(8, "big"))
    wanted = ("--topic", "orders", "--queue", 1, "--offset", 5)
    _, out, _ = penstock("store", "inspect", root, "-o", "json", *wanted)
    assert [row["queue_offset"] for row in _lines(out)] == list(range(5, 20))


def test_an_offset_without_a_queue_is_wrong_usage(penstock: Command, root: Path) -> None:
    for wanted in (("--offset", 1), ("--offset", 1, "--topic", "orders"), ("--max", 0)):
        assert penstock("store", "inspect", root, *wanted)[0] == 2


def test_the_table_shows_20_rows_and_says_how_many_more(penstock: Command, root: Path) -> None:
    code, out, err = penstock("store", "inspect", root)
    assert code == 0
    assert len(out.splitlines()) == 21
    assert err.startswith("40 more")
    _, out, err = penstock("store", "inspect", root, "--max", 33)
    assert (len(out.splitlines()), err) == (34, "")


def test_inspect_goes_on_after_damage_and_tells_of_it(
    penstock: Command, root: Path, flip: Callable[[], None]
) -> None:
    flip()
    code, out, err = penstock("store", "inspect", root, "-o", "json")
    assert (code, len(_lines(out))) == (5, 59)
    assert err.startswith("damaged: ") and segment_name(0) in err


def test_a_message_cannot_drive_the_terminal(
    penstock: Command, store_builder: Builder, make_record: Maker
) -> None:
    tags = encode_properties({"TAGS": "\x1b[31mred"})
    _, out, _ = penstock("store", "inspect", store_builder([make_record(properties=tags)]))
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_a_closed_pipe_ends_the_command_quietly(root: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "store", "inspect", root, "-o", "json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_long_listing_ends_at_once_with_its_reader_and_with_ctrl_c(
    store_builder: Builder, make_record: Maker, is_interrupted: bool
) -> None:
    """Other processes are at work then: none is left, and none says anything."""
    store = store_builder([make_record(body=b"z" * 8000)] * 3000, segment_bytes=32 << 20)
    words = ["store", "inspect", store, "-o", "json", "--body", "--processes", "3"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as listing:
        assert listing.stdout is not None and listing.stderr is not None
        try:
            # more than this process lists before it starts others
            for _ in range(2150):
                assert json.loads(listing.stdout.readline())["topic"] == "orders"
            workers = psutil.Process(listing.pid).children()
            assert len(workers) == 3
            if is_interrupted:
                os.killpg(listing.pid, signal.SIGINT)
            else:
                listing.stdout.close()
            assert listing.wait(60) == (130 if is_interrupted else 0)
            told = listing.stderr.read().decode()
            # one line of Ctrl-C, after that of the terminal, and nothing of a reader
            assert told.count("\n") == 2 * is_interrupted
            assert ("INTERRUPTED" in told) == is_interrupted and "Traceback" not in told
            assert psutil.wait_procs(workers, 60)[1] == []
        finally:
            listing.kill()


@pytest.mark.parametrize(
    "asked",
    [
        *(["-o", form, "--body"] for form in ("json", "csv", "plain")),
        ["--max", 50, "--body"],
        ["-o", "json", "--topic", "orders"],
    ],
    ids=lambda asked: " ".join(map(str, asked)),
)
def test_rows_are_the_same_in_however_many_processes_they_are_made(
    penstock: Command,
    root: Path,
    flip: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    asked: list[object],
) -> None:
    flip()
    alone = penstock("store", "inspect", root, *asked, "--processes", 1)
    monkeypatch.setattr(log_parts, "ALONE", 1)
    monkeypatch.setattr(log_parts, "PART_BYTES", 1000)
    assert penstock("store", "inspect", root, *asked, "--processes", 3) == alone
    assert len(alone[1].splitlines()) >= 20 and alone[2].startswith("damaged: ")


def test_a_cell_of_csv_is_whole_and_one_of_a_table_short(
    penstock: Command, store_builder: Builder, make_record: Maker
) -> None:
    store = store_builder([make_record(body=b"y" * 1000)])
    _, out, _ = penstock("store", "inspect", store, "-o", "csv", "--body")
    head, row = csv.reader(io.StringIO(out))
    assert (head[-1], row[-1]) == ("body", "y" * 1000)
    _, out, _ = penstock("store", "inspect", store, "--body")
    assert out.splitlines()[1].endswith(" " + "y" * 57 + "...")


def test_nothing_is_looked_at_after_the_last_record_that_is_asked_for(
    penstock: Command, root: Path
) -> None:
    with StoreDirectory(root) as store:
        at = [step[0] for step in store.scan_log()][4]
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(at + 105)  # of its body; its host is IPv6
        file.write(b"\xff")
    assert penstock("store", "inspect", root, "--max", 4)[::2] == (0, "")
    code, out, err = penstock("store", "inspect", root, "--max", 5)
    assert (code, len(out.splitlines())) == (5, 6)
    assert err.startswith("damaged: ")


def test_a_terminal_is_shown_how_far_it_is_while_rows_go_elsewhere(
    store_builder: Builder, make_record: Maker, terminal: Callable[..., Any]
) -> None:
    store = store_builder([make_record(body=b"z" * 1000)] * 3000, segment_bytes=4 << 20)
    reader, writer = os.pipe()
    shown = terminal("store", "inspect", store, "-o", "json", "--body", stdout=writer)
    os.close(writer)
    # nobody reads yet, so it cannot be done
    text = shown.show(until=" s left")
    assert "inspecting" in text and " of 4.0 MiB, about " in text
    with os.fdopen(reader, "rb") as rows:
        assert sum(1 for _ in rows) == 3000
    assert shown.end() == 0


def test_a_segment_that_is_full_to_its_last_byte_does_not_run_into_the_next_one(
    penstock: Command, store_builder: Builder, make_record: Maker
) -> None:
    """No blank stands between: the records follow each other, in two files."""
    size = len(encode_record(make_record(body=b"z" * 100)))
    store = store_builder([], segment_bytes=8 * size)
    log = b"".join(
        encode_record(make_record(body=b"z" * 100, physical_offset=at))
        for at in range(0, 20 * size, size)
    )
    for at in range(0, len(log), 8 * size):
        segment = log[at : at + 8 * size].ljust(8 * size, b"\0")
        (store / "commitlog" / segment_name(at)).write_bytes(segment)
    code, out, _ = penstock("store", "inspect", store, "-o", "json")
    assert code == 0
    assert [row["physical_offset"] for row in _lines(out)] == [*range(0, 20 * size, size)]
