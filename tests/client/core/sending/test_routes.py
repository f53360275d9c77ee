"""What a producer asks about topics: repeated until it is answered, and answered once."""

from __future__ import annotations

from penstock.client.core.sending.routes import ASK_AGAIN_MS, Routes
from penstock.shared.errors import StoreUnavailable, TopicNotFound
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


def route(routes: Routes, now_ms: int) -> messages.Route:
    """The question that is asked now."""
    routes.ask_again(now_ms)
    ((raw,),) = routes.outgoing(now_ms)
    asked = messages.decode_produce_request(raw)
    assert isinstance(asked, messages.Route) and asked.topic == "orders"
    return asked


def test_a_producer_asks_every_30_s_whether_a_topic_has_changed_or_is_gone() -> None:
    routes = Routes()
    routes.ask("orders")
    first = route(routes, 1000)
    routes.routed(messages.Routed(first.request, "orders", 4), 1000)
    for now_ms, queues in ((31_000, 6), (61_000, 2), (91_000, 0)):
        routes.ask_again(now_ms - 1)
        assert routes.outgoing(now_ms - 1) == []
        again = route(routes, now_ms)
        assert first.create and not again.create, "a topic is made by messages, and not by this"
        if queues:
            routes.routed(messages.Routed(again.request, "orders", queues), now_ms)
            assert routes.queues == {"orders": queues}
    routes.refused(again.request, TopicNotFound("there is no such topic", "orders"))
    assert routes.queues == {}


def test_nobody_asks_for_a_topic_when_all_its_messages_were_given_up() -> None:
    routes = Routes()
    routes.ask("orders")
    route(routes, 1000)
    assert list(routes.give_up(1000, 0)) == []
    route(routes, 7000)
    assert list(routes.give_up(9000, 6500)) == []
    routes.ask_again(20_000)
    assert routes.outgoing(20_000) == []
