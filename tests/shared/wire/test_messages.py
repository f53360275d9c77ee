"""The wire format: every message comes back, and no bytes at all do harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shared.errors import (
    BY_STATUS,
    PenstockError,
    ProtocolError,
    StoreUnavailable,
    error_from_status,
)
from penstock.shared.wire import messages

Decode = Callable[[bytes], Any]
SIDES = [
    (messages.decode_produce_request, messages.ProduceRequest),
    (messages.decode_produce_answer, messages.ProduceAnswer),
    (messages.decode_consume_request, messages.ConsumeRequest),
    (messages.decode_consume_answer, messages.ConsumeAnswer),
]
KINDS = [(decode, kind) for decode, union in SIDES for kind in get_args(union)]
texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, 2**62 - 1)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of one field's type."""
    if isinstance(kind, msgspec.inspect.IntType):
        return numbers if kind.ge is not None else st.integers(-(2**63), 2**64 - 1)
    if isinstance(kind, msgspec.inspect.LiteralType):
        return st.sampled_from(kind.values)
    if isinstance(kind, msgspec.inspect.StrType):
        return texts
    if isinstance(kind, msgspec.inspect.BoolType):
        return st.booleans()
    if isinstance(kind, msgspec.inspect.BytesType):
        return st.binary(max_size=20)
    if isinstance(kind, msgspec.inspect.DictType):
        return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=4)
    if isinstance(kind, msgspec.inspect.VarTupleType):
        least = kind.min_length or 0
        return st.lists(values(kind.item_type), min_size=least, max_size=4).map(tuple)
    if isinstance(kind, msgspec.inspect.TupleType):
        return st.tuples(*map(values, kind.item_types))
    if isinstance(kind, msgspec.inspect.UnionType):
        return st.one_of(map(values, kind.types))
    if isinstance(kind, msgspec.inspect.NoneType):
        return st.none()
    assert isinstance(kind, msgspec.inspect.StructType), kind
    fields = {field.name: values(field.type) for field in kind.fields}
    return st.builds(kind.cls, **fields)


def test_the_unions_hold_every_message_that_is_declared() -> None:
    parts = {
        messages.WireMessage,
        messages.Subscription,
        messages.QueueSlice,
        messages.QueueRange,
    }
    declared = {
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, messages.WireMessage)
    }
    assert declared - parts == {kind for _, kind in KINDS}


@pytest.mark.parametrize(("decode", "kind"), KINDS, ids=[kind.__name__ for _, kind in KINDS])
@given(data=st.data())
@settings(max_examples=25)
def test_every_message_comes_back_as_it_was(
    decode: Decode, kind: type[messages.WireMessage], data: st.DataObject
) -> None:
    message = data.draw(values(msgspec.inspect.type_info(kind)))
    back = decode(messages.encode(message))
    assert back == message and type(back) is kind


@pytest.mark.parametrize(("decode", "union"), SIDES)
def test_a_message_of_another_side_is_no_message(decode: Decode, union: Any) -> None:
    outsider = messages.Hello(1, 2, 3, 4)
    if messages.Hello in get_args(union):
        assert decode(messages.encode(outsider)) == outsider
        outsider = messages.Routed(1, "t", 2)
    with pytest.raises(ProtocolError):
        decode(messages.encode(outsider))


def outcome(raw: bytes) -> list[object]:
    """What each side makes of the bytes; an error other than ProtocolError fails the test."""
    found: list[object] = []
    for decode, _ in SIDES:
        try:
            found.append(decode(raw))
        except ProtocolError as error:
            assert str(error) and error.what and len(str(error)) < 1000
    return found


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_any_bytes_are_a_message_or_a_protocol_error(raw: bytes) -> None:
    for message in outcome(raw):
        assert isinstance(message, messages.WireMessage)


@given(st.data())
@settings(max_examples=300)
def test_flipped_and_cut_messages_are_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    _, kind = data.draw(st.sampled_from(KINDS))
    raw = bytearray(messages.encode(data.draw(values(msgspec.inspect.type_info(kind)))))
    for _ in range(data.draw(st.integers(0, 3))):
        bit = data.draw(st.integers(0, len(raw) * 8 - 1))
        raw[bit // 8] ^= 1 << bit % 8
    outcome(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x91" * 100_000,  # nested deeper than any stack
        b"\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1 elements, and none of them
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x95\xa4Pull\x01\xa1t\xdf\xff\xff\xff\xff\x00",
        b"\x92\xa9ListTopics\xcf" + b"\xff" * 8,
        b"\x92\xaaListTopics\xcf" + b"\xff" * 8,
        b"\x94\xa5Route\x01\xa2\xff\xfe\xc3",  # text that is not UTF-8
        b"\x92\xa2\xff\xfe\x01",
        b"\xc1",
        b"\xc7\xff\x05",
    ],
)
def test_hostile_headers_are_protocol_errors(raw: bytes) -> None:
    assert outcome(raw) == []


@pytest.mark.parametrize("wrong", [-1, 2**62, 2**64 - 1])
def test_numbers_are_bounded_so_that_every_answer_can_be_encoded(wrong: int) -> None:
    good = messages.Hello(1, 2, 3, 4)
    for field in good.__struct_fields__:
        changed = msgspec.structs.replace(good, **{field: wrong})
        with pytest.raises(ProtocolError):
            messages.decode_produce_request(messages.encode(changed))


@pytest.mark.parametrize("kind", sorted(BY_STATUS.values(), key=lambda kind: kind.__name__))
def test_an_error_comes_back_with_its_type_and_its_texts(kind: type[PenstockError]) -> None:
    sent = kind("the rule", 42, "the hint")
    answer = messages.decode_produce_answer(messages.encode(messages.refusal(sent, 7, 9)))
    assert isinstance(answer, messages.Refused) and (answer.request, answer.session) == (7, 9)
    back = error_from_status(answer.status, answer.what, answer.value, answer.hint)
    assert type(back) is kind
    assert (back.what, back.value, back.hint) == ("the rule", "42", "the hint")
    assert str(back) == str(sent)


def test_an_error_of_another_status_keeps_it() -> None:
    answer = messages.refusal(StoreUnavailable("r", None, "h", status="SYSTEM_BUSY"), 1)
    back = error_from_status(answer.status, answer.what, answer.value, answer.hint)
    assert back.status == "SYSTEM_BUSY" and answer.value == ""


def test_the_value_of_an_error_is_cut() -> None:
    assert len(messages.refusal(StoreUnavailable("r", "x" * 10_000), 1).value) == 500
