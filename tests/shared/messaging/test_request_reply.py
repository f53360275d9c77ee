"""The properties of requests and replies, as RocketMQ's clients write and read them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidMessage
from penstock.shared.filters.message_filter import SQL92, parse_filter
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.messaging.request_reply import (
    new_client_id,
    new_correlation_id,
    replies_to,
    reply_to,
    request_properties,
)

# What RocketMQ's client and broker have put into a request by the time somebody reads it.
OFFICIAL = {
    "CORRELATION_ID": "4d9a4e9c-2b0a-4dbb-9c0f-3f0f3d3a3f11",
    "REPLY_TO_CLIENT": "192.168.1.7@4711#123456789012345",
    "TTL": "3000",
    "CLUSTER": "blue",
    "UNIQ_KEY": "7F0000010000000000000000000000FF",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}


def test_the_reply_to_an_official_request_has_what_its_client_looks_for() -> None:
    assert reply_to(OFFICIAL) == (
        "blue_REPLY_TOPIC",
        {
            "MSG_TYPE": "reply",
            "CORRELATION_ID": "4d9a4e9c-2b0a-4dbb-9c0f-3f0f3d3a3f11",
            "REPLY_TO_CLIENT": "192.168.1.7@4711#123456789012345",
            "TTL": "3000",
        },
    )


def test_our_request_is_one_that_an_official_client_can_answer() -> None:
    """It refuses what has no CLUSTER, and copies the other three."""
    correlation_id = new_correlation_id()
    assert str(uuid.UUID(correlation_id)) == correlation_id
    ours = request_properties(correlation_id, "c", 2500)
    assert (ours["CLUSTER"], ours["TTL"], ours["REPLY_TO_CLIENT"]) == (
        "DefaultCluster",
        "2500",
        "c",
    )
    topic, reply = reply_to(ours)
    assert topic == "DefaultCluster_REPLY_TOPIC"
    assert {name: reply[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")} == {
        name: ours[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
    }


@pytest.mark.parametrize("name", ["CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_what_lacks_an_address_is_no_request(name: str) -> None:
    without = {key: value for key, value in OFFICIAL.items() if key != name}
    with pytest.raises(InvalidMessage, match=f"asks for no reply.*{name}"):
        reply_to(without)


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16))
def test_the_filter_takes_the_replies_to_one_client_and_no_others(ip: bytes) -> None:
    mine, others = new_client_id(ip), new_client_id(ip)
    assert mine != others
    found = parse_filter(SQL92, replies_to(mine))
    assert found is not None
    for client, expected in [(mine, True), (others, False)]:
        properties = encode_properties({"REPLY_TO_CLIENT": client})
        record = Record("t", b"", properties, queue_id=0, queue_offset=0)
        assert found.matches(memoryview(encode_record(record))) is expected
