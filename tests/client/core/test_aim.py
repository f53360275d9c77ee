"""Where each core aims: a request that could not be sent, an answer, and another store's broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.aim import Aim
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.membership import Membership
from penstock.client.core.groups.send_back import SendBack
from penstock.client.core.groups.strategies import strategy_of
from penstock.client.core.query_core import QueryCore
from penstock.client.core.sending.routes import Routes
from penstock.client.core.transactions import TransactionCore
from penstock.shared.errors import StoreUnavailable, WrongStore
from penstock.shared.wire import messages

Told = tuple[Aim, Callable[[], object]]


def _consumer() -> Told:
    core = ConsumerCore("tcp://broker", "orders", 0, timeout_ms=1000)
    return core.aim, lambda: core.not_connected(5)


def _membership() -> Told:
    core = Membership(MemberOptions("g", "c", (), strategy_of("AVG"), 15_000))
    return core.aim, lambda: core.not_connected(5)


def _send_back() -> Told:
    core = SendBack("member")
    return core.aim, lambda: core.not_connected(5)


def _query() -> Told:
    core = QueryCore("tcp://broker", 1000)
    return core.aim, core.not_connected


def _routes() -> Told:
    core = Routes()
    return core.aim, core.not_connected


def _transactions() -> Told:
    core = TransactionCore("broker", "g", "c", 1000, listens=True)
    return core.aim, lambda: core.not_connected(5)


CORES = (_consumer, _membership, _send_back, _query, _routes, _transactions)


@pytest.mark.parametrize("made", CORES)
def test_a_request_that_could_not_be_sent_has_the_broker_looked_for(
    made: Callable[[], Told],
) -> None:
    aim, not_connected = made()
    assert not aim.away
    not_connected()
    assert aim.away
    assert aim.heard(messages.Described(1, "orders", False, ())) and not aim.away


def test_another_store_s_broker_is_not_the_one_that_is_meant() -> None:
    aim = Aim()
    aim.store = "/my store"
    wrong = messages.refusal(WrongStore("it runs on", "/other", "look"), 1)
    assert not aim.heard(wrong) and aim.away
    assert aim.elsewhere is not None
    assert aim.elsewhere.value == "/other, and not on /my store"
    assert aim.elsewhere.hint == "see what runs on yours: penstock status --store '/my store'"
    other: Any = messages.refusal(StoreUnavailable("not yet"), 1)
    assert aim.heard(other), "what the broker itself refuses is its answer"
    assert not aim.away and aim.elsewhere is None
