"""What a requester and a replier may say: how long to wait, and which properties are their own."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from penstock.client.core.requests import check_wait, merged
from penstock.shared.errors import InvalidArgument, InvalidMessage


@pytest.mark.parametrize("seconds", [0.001, 0.5, 1, 60])
def test_any_time_may_be_waited_for(seconds: float) -> None:
    assert check_wait(seconds) == seconds
    assert check_wait(math.inf) == threading.TIMEOUT_MAX, "as long as can be waited at all"


@pytest.mark.parametrize("seconds", [None, 0, -0.5])
def test_a_request_that_waits_for_no_time_or_without_an_end_is_none(seconds: Any) -> None:
    with pytest.raises(InvalidArgument, match="a request waits for no time"):
        check_wait(seconds)


def test_a_senders_properties_come_with_those_of_a_request() -> None:
    own = {"CORRELATION_ID": "1", "TTL": "2"}
    assert merged(None, own) == own
    assert merged({}, own) == own
    assert merged({"a": "b"}, own) == {"a": "b"} | own
    assert own == {"CORRELATION_ID": "1", "TTL": "2"}


def test_a_property_that_a_request_has_itself_is_refused_and_so_is_what_is_no_mapping() -> None:
    with pytest.raises(InvalidMessage, match="CORRELATION_ID"):
        merged({"a": "b", "TTL": "9", "CORRELATION_ID": "x"}, {"TTL": "2", "CORRELATION_ID": "1"})
    bad: Any = [("a", "b")]
    with pytest.raises(InvalidMessage, match="a mapping from str to str"):
        merged(bad, {})
