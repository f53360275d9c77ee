"""Objects come back as they were sent, whatever has described them; what does not is an error."""

from __future__ import annotations

import dataclasses
import datetime as dt
import subprocess
import sys
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.messaging.payload import (
    CODECS,
    JSON,
    MSGPACK,
    decode_payload,
    encode_payload,
    is_payload,
)


class Struct(msgspec.Struct):
    number: int
    name: str
    due: dt.datetime


@dataclasses.dataclass
class Data:
    number: int
    name: str
    due: dt.datetime


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    number: int
    name: str
    due: dt.datetime


class Holder(msgspec.Struct):
    """A model inside a struct."""

    inside: Model
    several: list[Data]


class Pair(NamedTuple):
    one: int


KINDS = (Struct, Data, Model)
moments = st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))


@pytest.mark.parametrize("content_type", CODECS)
@given(
    number=st.integers(-(2**63), 2**63 - 1),
    name=st.text(st.characters(codec="utf-8")),
    due=moments,
)
def test_an_object_comes_back(content_type: str, number: int, name: str, due: dt.datetime) -> None:
    for kind in KINDS:
        sent: Any = kind(number=number, name=name, due=due)
        assert is_payload(sent)
        assert decode_payload(encode_payload(sent, content_type), content_type, kind) == sent
    model = Model(number=number, name=name, due=due)
    holder = Holder(model, [Data(number, name, due)])
    assert decode_payload(encode_payload(holder, content_type), content_type, Holder) == holder


def test_all_of_them_are_the_same_json_and_a_dictionary_is_its_own() -> None:
    due = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    bodies = {encode_payload(kind(number=1, name="n", due=due)) for kind in KINDS}
    assert bodies == {b'{"number":1,"name":"n","due":"2026-01-02T00:00:00Z"}'}
    assert encode_payload({"a": [1, None]}) == b'{"a":[1,null]}'
    assert decode_payload(b'{"a":[1,null]}', None) == {"a": [1, None]}


@pytest.mark.parametrize("other", [Struct, Data, Model, "text", b"bytes", 5, None, [1], Pair(1)])
def test_what_has_no_codec_is_no_payload(other: object) -> None:
    assert not is_payload(other)


def test_a_reader_asks_for_bytes_for_text_or_for_any_kind_of_json() -> None:
    assert decode_payload(b"\xff", None, bytes) == b"\xff"
    assert decode_payload("ü".encode(), None, str) == "ü"
    assert decode_payload("ü".encode(), "text/plain; charset=utf-8", str) == "ü"
    assert decode_payload(b'"text"', JSON, str) == "text"
    assert decode_payload(b"[1,2]", "Application/JSON; charset=utf-8", list[int]) == [1, 2]
    assert decode_payload(b"[1,2]", "application/vnd.orders+json") == [1, 2]


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "said"),
    [
        (b"{", JSON, Struct, "not of the type Struct"),
        (b"{}", JSON, Struct, "number"),
        (b"{}", None, Model, "number"),
        (b'{"number":"1","name":"n","due":"2026-01-02T00:00:00Z"}', JSON, Data, "Expected `int`"),
        (b"[" * 100_000, JSON, Any, "bytes of another form"),
        (b"\xc1", MSGPACK, Any, "bytes of another form"),
        (b"\xff", None, str, "not of the type str"),
        (b"x", "application/avro", Any, "content type that is not known"),
    ],
)
def test_a_body_of_another_form_is_a_typed_error(
    body: bytes, content_type: str | None, kind: Any, said: str
) -> None:
    with pytest.raises(InvalidMessage, match=said) as caught:
        decode_payload(body, content_type, kind)
    assert "message.body" in caught.value.hint


def test_a_type_that_no_body_has_is_a_mistake_of_the_program() -> None:
    with pytest.raises(InvalidArgument, match="no body can be decoded"):
        decode_payload(b"{}", JSON, int | Struct | Data)
    with pytest.raises(InvalidMessage, match="have no codec"):
        decode_payload(b"{}", JSON, subprocess.Popen)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": 2**70}, {"a": "\ud800"}])
def test_what_cannot_be_encoded_is_a_typed_error(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="the dict cannot be encoded as application/msgpack"):
        encode_payload(value, MSGPACK)


@pytest.mark.parametrize("content_type", ["text/plain", "", None, 5, ["application/json"]])
def test_a_content_type_without_a_codec_is_a_typed_error(content_type: object) -> None:
    with pytest.raises(InvalidMessage, match="not encoded as this content type"):
        encode_payload({}, content_type)


def test_pydantic_is_not_imported() -> None:
    code = (
        "import sys, penstock.shared.messaging.payload as p\n"
        "p.decode_payload(p.encode_payload({'a': 1}), None)\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The annotation of the inner type is read while the reader of the outer one is being made.
HALF_MADE = """
import threading, msgspec
from penstock.shared.messaging.payload import JSON, decode_payload

class Inner(msgspec.Struct):
    number: "slowly()"

class Outer(msgspec.Struct):
    inner: Inner

def read():
    assert decode_payload(b'{"inner": {"number": 1}}', JSON, Outer).inner.number == 1

def slowly():
    if not other.ident:
        other.start()
        other.join(timeout=1)  # it waits for this one, or ends the process before
    return int

other = threading.Thread(target=read)
read()
other.join()
print("both have read")
"""


def test_two_threads_may_be_the_first_to_read_a_type() -> None:
    done = subprocess.run([sys.executable, "-c", HALF_MADE], capture_output=True, timeout=60)
    assert done.stdout == b"both have read\n", (done.returncode, done.stderr)
