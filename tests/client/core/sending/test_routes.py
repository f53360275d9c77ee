"""What a producer asks about topics: repeated until it is answered, and answered once."""

from __future__ import annotations

from penstock.client.core.sending.routes import ASK_AGAIN_MS, Routes
from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire import messages


def test_a_request_whose_answer_is_lost_is_repeated_until_it_is_answered() -> None:
    """A broker may lose its writer between the two."""
    routes = Routes()
    number = routes.request(messages.CreateTopic(0, "orders", 4))
    (asked,) = routes.outgoing(1000)
    routes.ask_again(1000)
    routes.ask_again(1000 + ASK_AGAIN_MS)
    assert routes.outgoing(1000 + ASK_AGAIN_MS) == []
    routes.ask_again(1001 + ASK_AGAIN_MS)
    assert routes.outgoing(1001 + ASK_AGAIN_MS) == [asked]
    routes.routed(messages.Routed(number, "orders", 4))
    routes.ask_again(5000)
    assert routes.outgoing(5000) == []
    assert routes.answer(number) == messages.Routed(number, "orders", 4)
    routes.routed(messages.Routed(number, "orders", 4))
    assert routes.answer(number) is None, "the answer to the first one came late"


def test_what_nobody_waits_for_is_not_repeated() -> None:
    routes = Routes()
    number = routes.request(messages.ListTopics(0))
    routes.outgoing(1000)
    routes.ask_again(1000)
    routes.forget(number)
    routes.ask_again(9000)
    assert routes.outgoing(9000) == []
    routes.refused(number, StoreUnavailable("it stops"))
    assert routes.answer(number) is None
