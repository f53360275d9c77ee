"""Templates have kcat's fields, selections jq's paths; all else is refused with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.printing.templates import FIELDS, filled, parse_path, parse_template, selected
from penstock.client.core.message import Message
from penstock.shared.errors import InvalidArgument
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record

RAW = encode_properties({"TAGS": "new", "KEYS": "kü", "own": "x"})
MESSAGE = Message(
    encode_record(
        Record("orders", b"b\xff", RAW, queue_id=3, queue_offset=17, store_timestamp_ms=1700)
    )
)
OBJECT = {"a": {"b": [10, {"c": None}]}, "odd name": 1, "several": {"x": [1], "y": [2, 3]}}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"%t/%p/%o\n", b"orders/3/17\n"),
        (r"%k %K %g %h", "kü 3 new TAGS=new,KEYS=kü,own=x".encode()),
        (r"%s%S%T%%", b"b\xff21700%"),
        (r"\t\r\0\\\x41é", "\t\r\0\\Aé".encode()),
        ("", b""),
    ],
)
def test_a_template_is_filled(template: str, expected: bytes) -> None:
    assert filled(parse_template(template), MESSAGE, MESSAGE.body) == expected


@pytest.mark.parametrize("template", ["%", "%z", "\\", "\\q", "a%"])
def test_a_field_that_there_is_not_is_refused_with_those_that_there_are(template: str) -> None:
    with pytest.raises(InvalidArgument, match="%t topic") as caught:
        parse_template(template)
    assert all(f"%{letter}" in caught.value.hint for letter in FIELDS)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", [OBJECT]),
        (".a.b[0]", [10]),
        (".a.b[-1].c", [None]),
        (".a.b[]", [10, {"c": None}]),
        ('."odd name"', [1]),
        (".several[][]", [1, 2, 3]),
        (".a.b.c", [None]),
        (".nowhere[5].x", [None]),
        (".nowhere[]", []),
        (".a.b.[0]", [10]),
    ],
)
def test_a_path_leads_to_what_is_there_and_else_to_null(path: str, expected: list[Any]) -> None:
    assert list(selected(OBJECT, parse_path(path))) == expected


@pytest.mark.parametrize("path", ["", "a", ".a..b", ".a[", ".a[x]", ".a b", '."a', ". "])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="selection"):
        parse_path(path)
