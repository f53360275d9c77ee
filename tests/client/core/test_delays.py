"""What a sender says of when a message is to come: each form, each mistake, and the handle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.client.core.delays import Recall, parse_recall, recall_handle, recall_of, wanted_delay
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.messaging.delayed import MAX_DELAY_MS, Delay

NOW = 1_700_000_000_000


def wanted(properties: Any = None, **said: Any) -> Any:
    arguments = {"delay": None, "deliver_at": None, "delay_level": None} | said
    return wanted_delay(*arguments.values(), properties, NOW)


@pytest.mark.parametrize(
    "said, found",
    [
        ({}, None),
        ({"delay": 0}, None),
        ({"delay": -3}, None),
        ({"delay": -1e300}, None),
        ({"delay": 1.0001}, Delay(out_ms=NOW + 1001, delay_ms=1001)),
        ({"delay": timedelta(minutes=1)}, Delay(out_ms=NOW + 60_000, delay_ms=60_000)),
        ({"delay": timedelta(days=40)}, Delay(out_ms=NOW + MAX_DELAY_MS, delay_ms=MAX_DELAY_MS)),
        ({"deliver_at": NOW}, None),
        ({"deliver_at": NOW + 1}, Delay(out_ms=NOW + 1)),
        ({"deliver_at": NOW + MAX_DELAY_MS}, Delay(out_ms=NOW + MAX_DELAY_MS)),
        ({"deliver_at": datetime.fromtimestamp(NOW / 1000 + 9, UTC)}, Delay(out_ms=NOW + 9000)),
        ({"delay_level": 0}, None),
        ({"delay_level": 18}, Delay(18)),
        ({"properties": {"DELAY": "99"}}, Delay(18)),
        ({"properties": {"DELAY": "0"}}, None),
        ({"properties": {"TIMER_DELAY_SEC": "2"}}, Delay(out_ms=NOW + 2000, delay_ms=2000)),
        ({"properties": {"TIMER_DELAY_MS": "2"}}, Delay(out_ms=NOW + 2, delay_ms=2)),
        ({"properties": {"TIMER_DELIVER_MS": str(NOW + 5)}}, Delay(out_ms=NOW + 5)),
    ],
)
def test_each_way_to_say_it(said: dict[str, Any], found: Delay | None) -> None:
    assert wanted(**said) == (found, None)


def test_other_properties_stay_the_messages_own() -> None:
    delay, own = wanted({"DELAY": "3", "region": "eu"})
    assert delay == Delay(3) and own == {"region": "eu"}
    plain = {"region": "eu"}
    assert wanted(plain) == (None, plain)


@pytest.mark.parametrize(
    "said",
    [
        {"delay": 1, "delay_level": 2},
        {"deliver_at": NOW + 5, "properties": {"DELAY": "3"}},
        {"delay": "10s"},
        {"delay": True},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e308},
        {"delay": 10**400},
        {"deliver_at": 10**400},
        {"deliver_at": datetime.max},  # a local time, to which no clock comes
        {"delay": timedelta(days=40, seconds=1)},
        {"deliver_at": NOW + MAX_DELAY_MS + 1},
        {"deliver_at": "tomorrow"},
        {"delay_level": 19},
        {"delay_level": -1},
        {"properties": {"DELAY": "soon"}},
        {"properties": {"TIMER_DELIVER_MS": "-1"}},
        {"properties": {"TIMER_OUT_MS": str(NOW + 5)}},
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage) as raised:
        wanted(**said)
    assert raised.value.what


def test_a_handle_says_what_to_recall_until_its_time_has_come() -> None:
    handle = recall_handle(Recall("orders", NOW + 5, "K1"))
    assert parse_recall(handle, NOW) == Recall("orders", NOW + 5, "K1")
    assert recall_of(handle, NOW) == ("orders", Delay(out_ms=NOW + 5, recalls="K1"))
    with pytest.raises(InvalidArgument, match="its time has come"):
        parse_recall(handle, NOW + 5)


@pytest.mark.parametrize("handle", ["", "nonsense", "djEgYQ==", "ÄÖ", None, 5])
def test_what_is_no_handle_is_refused(handle: Any) -> None:
    with pytest.raises(InvalidArgument):
        parse_recall(handle, NOW)
