"""Rows by compiled loops, and by what says how each field looks: the same for any record."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cli.printing.output import json_line, shown_time
from penstock.cli.printing.records import row
from penstock.cli.printing.table import cells_of
from penstock.cli.store import record_parts
from penstock.cli.store.record_parts import Form, rows_of
from penstock.shared.formats.compression import compress
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.loops.pure import columns as pure

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

FORMS = ["json", "csv", "plain", "table"]
# names that one may take for another; values that are not there, that JSON escapes or csv quotes
NAMES = [b"TAGS", b"KEYS", b"UNIQ_KEY", b"XTAGS", b"TAG", b"a", b"", b"\xff", "键".encode(), b'"\n']
VALUES = [b"", b"a", b"a,b", b'say "x"', b"\\\b\f\n\r\t\0\x1f\x7f", b"\x01", b"\xc3", b"\xe6\xa0"]
VALUES += ["标签 \u2028 😀".encode(), b"'; --", bytes(range(3, 32)), b"x" * 300]
hosts = st.sampled_from(
    [
        *(
            pack_host("10.1.2.3", 54321),
            pack_host("127.0.0.1", 0),
            b"\x01\x02\x03\x04" + b"\xff" * 4,
        ),
        *(pack_host("2001:db8::1", 9), pack_host("::ffff:1.2.3.4", 1)),
    ]
)
entries = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([b"\x01", b"\x01", b"\x01", b""]),
    st.sampled_from(VALUES),
    st.sampled_from([b"\x02", b"\x02", b""]),
)
properties = st.lists(entries, max_size=6).map(lambda found: b"".join(map(b"".join, found)))
bodies = st.sampled_from([b"", b"a", b"ab", b"hello", "正文\n".encode(), b"\xff\x00"])
numbers = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
long_numbers = st.sampled_from([0, 1, -1, 1700000001456, 2**63 - 1, -(2**63)])


@st.composite
def records(draw: st.DrawFn) -> Record:
    is_compressed = draw(st.sampled_from([False, False, False, True]))
    body, flag = draw(bodies | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)), 0
    if is_compressed:
        body, flag = draw(st.sampled_from([compress("zlib", b"z" * 100), (b"no zlib", 1)]))
    return Record(
        draw(st.sampled_from(["orders", "%RETRY%" + "g" * 130, "a.b:c", "t"])),
        body,
        draw(properties),
        queue_id=draw(st.sampled_from([0, 3, 2**31 - 1])),
        flag=draw(numbers),
        queue_offset=draw(st.sampled_from([0, 7, 2**58 - 1])),
        physical_offset=draw(st.sampled_from([0, 4096, 2**40, 2**62])),
        sys_flag=flag | draw(st.sampled_from([0, 4, 8, 12, 0x80])),
        born_timestamp_ms=draw(long_numbers),
        born_host=draw(hosts),
        store_timestamp_ms=draw(long_numbers),
        store_host=draw(hosts),
        reconsume_times=draw(numbers),
        prepared_transaction_offset=draw(long_numbers),
    )


def rows_by_row(log: bytes, form: Form) -> Any:
    """What `rows_of` is to give, said once more without any loop or cache."""
    at, found = 0, list[dict[str, Any]]()
    while at < len(log):
        record = decode_record(log, at)
        found.append(row(record, with_body=form.with_body))
        at += record.total_size
    if form.name == "json":
        return "".join(json_line(each, form.encoding) + "\n" for each in found).encode()
    names = "topic", "queue_id", "queue_offset", "physical_offset", "size"
    cells = [
        [
            *(each[name] for name in names),
            *(shown_time(each["store_timestamp_ms"]), each["tags"], each["keys"]),
        ]
        for each in found
    ]
    if form.with_body:
        for each, fields in zip(cells, found, strict=True):
            text = fields["body"]
            each.append(f"{fields['body_size']} bytes" if text is None else text)
    if form.name == "table":
        return cells
    lines = io.StringIO(newline="")
    for each in cells:
        if form.name == "plain":
            lines.write("\t".join(cells_of(each)) + "\n")
        else:
            shown = cells_of(each) if form.to_terminal else each
            csv.writer(lines, lineterminator="\n").writerow(shown)
    return lines.getvalue().encode()


def log_of(found: Iterable[Record]) -> bytes:
    return b"".join(map(encode_record, found))


def rows_by(loops: Any, log: bytes, form: Form, cut: int = 0) -> Any:
    """Rows of a log in two pieces, of which the first has this many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_parts, "active", loops)
        made = rows_of([memoryview(log)[:cut], memoryview(log)[cut:]], form)
    return msgspec.msgpack.decode(made) if form.name == "table" else made


TWICE = Record("orders", b"", b"TAGS\x01a\x02TAGS\x01b\x02")
NO_VALUE = Record("orders", b"", b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01\x02KEYS\x01")
NO_TAG = Record("orders", b"", b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01\x02")
NO_KEY = Record("orders", b"", b"TAGS\x01a\x02KEYS\x01k\x02KEYS\x01\x02")
MANY = Record("orders", b"", b"".join(b"k%d\x01v\x02" % number for number in range(70)))


@given(
    st.lists(records(), max_size=5),
    st.sampled_from(FORMS),
    st.booleans(),
    st.sampled_from(["utf-8", "UTF-8", "ascii", "latin-1"]),
    st.booleans(),
)
@example([TWICE, NO_VALUE, MANY], "json", True, "utf-8", False)
@example([TWICE, NO_VALUE, MANY], "csv", True, "utf-8", False)
@example([NO_TAG, NO_KEY], "csv", False, "utf-8", False)
def test_rows_are_the_same_by_either_form_of_the_loops(
    found: list[Record], form: str, with_body: bool, encoding: str, to_terminal: bool
) -> None:
    log, cut = log_of(found), len(log_of(found[:2]))
    asked = Form(form, with_body, encoding, to_terminal)
    expected = rows_by_row(log, asked)
    assert rows_by(native, log, asked, cut) == expected
    assert rows_by(pure, log, asked, cut) == expected


@pytest.mark.parametrize("size", [*range(70), 1024, 4096])
def test_every_byte_of_a_body_is_in_its_row(size: int) -> None:
    """Of any length, with what is escaped anywhere."""
    for body in (bytes(at % 251 for at in range(size)), bytes(at % 127 for at in range(size))):
        log = log_of([Record("orders", body, b"TAGS\x01" + b"\x03" * size)] * 2)
        form = Form("json", True, "utf-8", False)
        assert rows_by(native, log, form) == rows_by_row(log, form)


USUAL = [
    Record("orders", b"body", b"TAGS\x01t\x02KEYS\x01a b\x02UNIQ_KEY\x010A\x02"),
    Record("orders", "正文\n".encode(), 'a\x01"标签"\x02'.encode(), born_host=pack_host("::1", 1)),
    Record("%RETRY%" + "g" * 130, b"\xff\x00", b"", store_host=pack_host("::1", 1)),
]


@pytest.mark.parametrize("with_body", [False, True])
def test_the_rows_of_usual_records_are_all_made_by_the_loop(with_body: bool) -> None:
    log = log_of(USUAL)
    lines, at = native.json_lines(log, 0, with_body, False)
    assert (lines.count(b"\n"), at) == (3, len(log))
    rows, at = native.cells(log, 0, with_body, shown_time)
    assert (len(rows), at) == (3, len(log))
    # the line with Chinese in it is another one where the output has no such characters
    first, second = (len(encode_record(each)) for each in USUAL[:2])
    lines, at = native.json_lines(log, 0, with_body, True)
    assert (lines.count(b"\n"), at) == (1, first)
    assert native.json_lines(log, first + second, with_body, True)[1] == len(log)


def test_what_earlier_rows_have_left_in_memory_does_not_end_rows_of_ascii() -> None:
    rows = []
    for letter in ("üa", "abc"):  # of the same sizes: the bytes of both come to the same place
        log = log_of([Record("orders", letter.encode() * 700, b"")] * 5)
        for _ in range(10):
            lines, at = native.json_lines(log, 0, True, letter.isascii())
            rows.append((lines.count(b"\n"), at == len(log)))
    assert rows == [(5, True)] * 20


@pytest.mark.parametrize("loop", ["json_lines", "cells"])
def test_a_loop_asks_for_help_where_no_record_is(loop: str) -> None:
    log = log_of(USUAL)
    for start in (-1, 1, len(log), len(log) + 1, 1 << 62):
        asked = (False, False) if loop == "json_lines" else (False, shown_time)
        found, at = getattr(native, loop)(log, start, *asked)
        assert (len(found), at) == (0, start)
