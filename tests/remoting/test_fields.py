"""Fields of requests: texts that become numbers, what is missing, what is too much."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.codes import Request
from penstock.remoting.command import Command
from penstock.remoting.fields import (
    FIELDS,
    PullFields,
    RouteFields,
    SendAnswer,
    SendFields,
    UnregisterFields,
    read_fields,
    write_fields,
)
from penstock.shared.errors import ProtocolError

PULL = {
    "consumerGroup": "CG",
    "topic": "orders",
    "queueId": "3",
    "queueOffset": "12",
    "maxMsgNums": "32",
    "sysFlag": "7",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1700000000000",
    "bname": "b",
}


def test_numbers_are_read_from_text_and_what_nobody_asks_for_is_left() -> None:
    found = read_fields(Command(Request.PULL_MESSAGE, 1, PULL), PullFields)
    assert (found.queue_id, found.queue_offset, found.sub_version) == (3, 12, 1700000000000)
    assert found.expression_type == "TAG"


def test_a_truth_value_is_a_word_or_a_number() -> None:
    for text, value in {"true": True, "false": False, "1": True, "0": False}.items():
        fields = {"topic": "t", "acceptStandardJsonOnly": text}
        found = read_fields(Command(Request.GET_ROUTEINFO_BY_TOPIC, 1, fields), RouteFields)
        assert found.accept_standard_json_only is value


@pytest.mark.parametrize("changed", [{"queueId": "x"}, {"queueId": "4294967296"}, {"queueId": ""}])
def test_a_field_that_cannot_be_read_is_named(changed: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match=r"PULL_MESSAGE.*queueId"):
        read_fields(Command(Request.PULL_MESSAGE, 1, PULL | changed), PullFields)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"UNREGISTER_CLIENT.*clientID"):
        read_fields(Command(Request.UNREGISTER_CLIENT, 1), UnregisterFields)


def test_the_long_and_the_short_names_of_a_send_are_the_same_fields() -> None:
    sent = SendFields("PG", "t", "TBW102", 4, -1, 0, 5, 6, "k\x01v\x02", 1, True, 16, True)
    long = write_fields(sent)
    short = dict(zip("abcdefghijklm", long.values(), strict=True))
    assert read_fields(Command(Request.SEND_MESSAGE, 1, long), SendFields) == sent
    for code in (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE):
        assert read_fields(Command(code, 1, short), SendFields) == sent


def test_an_answer_is_texts() -> None:
    assert write_fields(SendAnswer("AB", 1, 2)) == {
        "msgId": "AB",
        "queueId": "1",
        "queueOffset": "2",
    }


@given(st.sampled_from(Request), st.dictionaries(st.sampled_from([*PULL, *"abcde"]), st.text()))
def test_any_fields_are_read_or_refused(code: Request, fields: dict[str, str]) -> None:
    with suppress(ProtocolError):
        read_fields(Command(code, 1, fields), FIELDS[code])
