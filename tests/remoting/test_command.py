"""Frames of commands: the golden ones, any command there and back, and any bytes at all."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.codes import Language, Request, Response
from penstock.remoting.command import Command, decode_command, encode_command
from penstock.remoting.fields import PullAnswer, SendFields, read_fields, write_fields
from penstock.shared.errors import ProtocolError

JSON_105 = (
    "000000630000005f",
    '{"code":105,"language":"JAVA","version":401,"opaque":7,"flag":0,'
    '"extFields":{"topic":"orders"}}',
)
AS_JAVA_PRINTS_IT = (
    "000000820000007e",
    '{"code":105,"extFields":{"topic":"orders"},"flag":0,"language":"JAVA","opaque":7,'
    '"serializeTypeCurrentRPC":"JSON","version":0}',
)
FROM_GO = (
    "0000007d00000079",
    '{"code":105,"language":"GO","version":401,"opaque":-5,"flag":0,'
    '"extFields":{"topic":"t","acceptStandardJsonOnly":"true"}}',
)
JSON_19 = (
    "000000c1000000bd",
    '{"code":19,"language":"JAVA","version":401,"opaque":9,"flag":1,"remark":"OFFSET_OVERFLOW_ONE",'
    '"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"5","minOffset":"0",'
    '"maxOffset":"5"}}',
)
BINARY_105 = (
    "0000002a010000260069000000000000070000000000000000000000110005746f706963000000066f7264657273"
)
BINARY_19 = (
    "0000007d0100007900130001910000000900000001000000134f46465345545f4f564552464c4f575f4f4e450000"
    "0051001473756767657374576869636842726f6b657249640000000130000f6e657874426567696e4f6666736574"
    "000000013500096d696e4f6666736574000000013000096d61784f66667365740000000135"
)
BINARY_310 = (
    "000000d6010000c701360001910000000b0000000000000000000000b200016100000002504700016200000006"
    "6f7264657273000163000000065442573130320001640000000134000165000000013300016600000001300001"
    "670000000d31373030303030303030313233000168000000013000016900000034554e49515f4b455901414331"
    "31303230333141324231384234414143323030303030303030303030310254414753015461674102"
    "00016a000000013000016b0000000566616c736500016d0000000566616c736568656c6c6f20776f726c64"
)


def frame_of(golden: tuple[str, str]) -> bytes:
    return bytes.fromhex(golden[0]) + golden[1].encode()


def read(frame: bytes) -> Command:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return decode_command(frame[4:])


def test_the_golden_request_is_the_same_bytes_in_both_forms() -> None:
    request = Command(105, 7, {"topic": "orders"}, version=401)
    assert encode_command(request) == frame_of(JSON_105)
    assert read(frame_of(JSON_105)) == request
    binary = msgspec.structs.replace(request, version=0, is_binary=True)
    assert encode_command(binary) == bytes.fromhex(BINARY_105)
    assert read(bytes.fromhex(BINARY_105)) == binary


def test_the_golden_answer_to_a_pull_is_the_same_bytes_in_both_forms() -> None:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "0",
        "maxOffset": "5",
    }
    answer = Command(
        Response.PULL_NOT_FOUND, 9, fields, flag=1, remark="OFFSET_OVERFLOW_ONE", version=401
    )
    assert encode_command(answer) == frame_of(JSON_19)
    binary = msgspec.structs.replace(answer, is_binary=True)
    assert encode_command(binary) == bytes.fromhex(BINARY_19)
    assert read(bytes.fromhex(BINARY_19)) == binary
    assert write_fields(PullAnswer(5, 0, 5)) == fields


def test_what_java_and_go_print_is_read() -> None:
    java = read(frame_of(AS_JAVA_PRINTS_IT))
    assert (java.code, java.opaque, java.fields, java.version) == (105, 7, {"topic": "orders"}, 0)
    go = read(frame_of(FROM_GO))
    assert go.language is Language.GO and go.opaque == -5
    assert go.fields == {"topic": "t", "acceptStandardJsonOnly": "true"}


def test_the_golden_send_has_its_fields() -> None:
    command = read(bytes.fromhex(BINARY_310))
    assert command.body == b"hello world" and command.opaque == 11
    found = read_fields(command, SendFields)
    assert found == SendFields(
        "PG", "orders", "TBW102", 4, 3, 0, 1700000000123, 0,
        "UNIQ_KEY\x01AC1102031A2B18B4AAC2000000000001\x02TAGS\x01TagA\x02",
    )  # fmt: skip


def test_a_header_may_have_numbers_and_truth_values_and_end_in_a_new_line() -> None:
    text = b'{"code":11,"opaque":1,"language":99,"extFields":{"a":1,"b":true,"c":null,"d":"x"}}\n'
    found = decode_command(len(text).to_bytes(4, "big") + text + b"body")
    assert found.fields == {"a": "1", "b": "true", "d": "x"}
    assert found.language is Language.OTHER and found.body == b"body" and not found.is_oneway
    text = b'{"code":11,"language":"KLINGON","flag":2}'
    found = decode_command(len(text).to_bytes(4, "big") + text)
    assert found.language is Language.OTHER and found.fields == {} and found.is_oneway


def test_a_code_that_a_binary_header_cannot_have_travels_in_the_other_one() -> None:
    command = Command(200050, 1, is_binary=True)
    assert read(encode_command(command)) == msgspec.structs.replace(command, is_binary=False)


int32 = st.integers(-(1 << 31), (1 << 31) - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    Command,
    st.sampled_from([*map(int, Request), *map(int, Response), -7, 32767]),
    int32,
    st.dictionaries(names, names, max_size=5),
    st.binary(max_size=50),
    int32,
    names,
    st.sampled_from(Language),
    st.integers(0, 32767),
    st.booleans(),
)


@given(commands)
def test_any_command_is_the_same_after_its_way(command: Command) -> None:
    assert read(encode_command(command)) == command


@given(st.binary(max_size=80))
def test_any_bytes_are_a_command_or_a_protocol_error(raw: bytes) -> None:
    with suppress(ProtocolError):
        decode_command(raw)


@given(commands, st.data())
def test_a_frame_with_some_other_bytes_is_a_command_or_a_protocol_error(
    command: Command, data: st.DataObject
) -> None:
    raw = bytearray(encode_command(command)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decode_command(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":1,"extFields":{"a":' + b"9" * 5000 + b"}}",
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":"x"}',
        b'{"opaque":1}',
        b'{"code":1,"extFields":{"a":{"b":1}}}',
        b'{"code":2147483648}',
        b"\xff",
        b"",
    ],
)
def test_a_header_that_is_none_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(len(text).to_bytes(4, "big") + text)


def test_what_does_not_fit_a_header_goes_in_the_other_form_or_not_at_all() -> None:
    long = Command(1, 2, {"k" * 40_000: "v"}, is_binary=True)
    found = decode_command(encode_command(long)[4:])
    assert found.fields == long.fields and not found.is_binary
    for is_binary, text in ((False, "\x01" * (3 << 20)), (True, "x" * (17 << 20))):
        with pytest.raises(ProtocolError):
            encode_command(Command(1, 2, {"k": text}, is_binary=is_binary))
