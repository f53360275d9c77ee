"""What a producer asks about topics, until it is answered; and what it then knows of them."""

from __future__ import annotations

from threading import Condition
from typing import Any

import pytest

from penstock.client.core.sending.frames import Sender, SendFuture
from penstock.client.core.sending.routes import (
    ASK_AGAIN_MS,
    REFRESH_MS,
    REFRESHED_AT_ONCE,
    Parked,
    Routes,
)
from penstock.shared.errors import InvalidArgument, StoreUnavailable, TopicNotFound
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.wire import messages

SENDER = Sender(Condition(), KeyOrigin("0A" * 10, 0))


def waiting(topic: str = "orders", tried: tuple[int, ...] = ()) -> Parked:
    return Parked(topic, [b""], 1, SendFuture(SENDER, 0), None, None, "", tried=tried)


def sent(routes: Routes, now_ms: int) -> list[Any]:
    return [messages.decode_produce_request(raw) for (raw,) in routes.outgoing(now_ms)]


@pytest.fixture
def routes() -> Routes:
    """A producer that knows, since 1000 ms, that topic orders has four queues."""
    routes = Routes()
    routes.aim.run = "the run"
    routes.routed(messages.Routed(routes.number(), "orders", 4), 1000)
    return routes


def refreshed(routes: Routes, now_ms: int = 1000 + REFRESH_MS) -> messages.Route:
    routes.ask_again(now_ms)
    (asked,) = sent(routes, now_ms)
    assert isinstance(asked, messages.Route) and asked.topic == "orders"
    return asked


@pytest.mark.parametrize("left", range(4))
def test_a_message_goes_to_a_queue_that_it_has_not_tried(routes: Routes, left: int) -> None:
    tried = tuple(queue for queue in range(4) if queue != left)
    assert [routes.queue_of(waiting(tried=tried)) for _ in range(9)] == [left] * 9
    assert routes.queue_of(waiting(tried=(0, 1, 2, 3))) in range(4)


def test_an_empty_key_is_a_key(routes: Routes) -> None:
    found = [routes.queue_for("orders", "", None) for _ in range(9)]
    assert found == [shard_queue("", 4)] * 9


def test_a_question_says_how_many_queues_a_new_topic_gets_and_whom_it_is_for(
    routes: Routes,
) -> None:
    routes.default_queues = 7
    routes.park(waiting("new"))
    routes.park(waiting("new"))
    routes.request(messages.ListTopics(0))
    asked, listed = sorted(sent(routes, 2000), key=lambda each: type(each).__name__, reverse=True)
    assert (asked.topic, asked.create, asked.queues, asked.run) == ("new", True, 7, "the run")
    assert isinstance(listed, messages.ListTopics) and listed.run == "the run"


def test_nobody_asks_for_a_topic_that_cannot_be(routes: Routes) -> None:
    with pytest.raises(InvalidArgument):
        routes.park(waiting("a b"))
    assert sent(routes, 2000) == []


def test_a_topic_that_is_not_there_fails_what_waits_for_it_once(routes: Routes) -> None:
    parked = waiting("new")
    routes.park(parked)
    (asked,) = sent(routes, 2000)
    error = TopicNotFound("there is no topic of this name", "new")
    assert routes.refused(asked.request, error) == [parked]
    assert routes.refused(asked.request, error) == []
    assert list(routes.give_up(90_000, 80_000)) == [] and routes.answer(asked.request) is None


def test_what_waits_goes_on_with_the_first_answer_that_names_the_queues(routes: Routes) -> None:
    parked = waiting("new")
    routes.park(parked)
    number = routes.request(messages.CreateTopic(0, "new", 3))
    made = messages.Routed(number, "new", 3)
    assert routes.routed(made) == [parked] and routes.answer(number) == made


def test_the_answer_to_a_request_may_be_an_error(routes: Routes) -> None:
    number, error = routes.request(messages.ListTopics(0)), StoreUnavailable("it stops")
    assert routes.refused(number, error) == [] and routes.answer(number) is error


def test_an_answer_that_nobody_wants_any_more_is_forgotten(routes: Routes) -> None:
    number = routes.request(messages.ListTopics(0))
    routes.told(messages.TopicList(number, {}))
    routes.forget(number)
    assert routes.answer(number) is None


def test_a_repeated_request_is_repeated_once_in_a_while(routes: Routes) -> None:
    routes.request(messages.ListTopics(0))
    assert len(sent(routes, 2000)) == 1
    counts = []
    for now_ms in (2000, 2001 + ASK_AGAIN_MS, 2002 + ASK_AGAIN_MS, 2002 + 2 * ASK_AGAIN_MS):
        routes.ask_again(now_ms)
        counts.append(len(sent(routes, now_ms)))
    assert counts == [0, 1, 0, 1]


def test_a_question_that_was_given_up_before_it_could_be_sent_is_not_sent(routes: Routes) -> None:
    parked = waiting("new")
    routes.park(parked)
    assert list(routes.give_up(2000, 1000)) == []
    assert list(routes.give_up(4000, 3000)) == [parked]
    assert sent(routes, 4000) == []


def test_only_a_topic_that_is_gone_is_forgotten_and_all_of_it(routes: Routes) -> None:
    routes.note(StoreUnavailable("for now"), "orders")
    assert routes.queues == {"orders": 4}
    routes.note(TopicNotFound("there is no topic of this name"), "orders")
    assert routes.queues == {} and "orders" not in routes.turns
    routes.ask_again(90_000)
    assert sent(routes, 90_000) == []


@pytest.mark.parametrize("deleted", [True, False])
def test_a_topic_is_known_until_it_is_deleted(routes: Routes, deleted: bool) -> None:
    number = routes.request(messages.DescribeTopic(0, "orders"))
    told = messages.TopicDescribed(number, "orders", 4, 4, 6, False, {}, deleted=deleted)
    routes.told(told)
    assert routes.answer(number) is told
    assert routes.queues == ({} if deleted else {"orders": 4})


def test_turns_go_on_where_a_topic_has_as_many_queues_as_before(routes: Routes) -> None:
    turns = routes.turns["orders"]
    routes.routed(messages.Routed(refreshed(routes).request, "orders", 4), 40_000)
    assert routes.turns["orders"] is turns
    again = refreshed(routes, 80_000)
    routes.routed(messages.Routed(again.request, "orders", 5), 80_000)
    assert routes.turns["orders"] is not turns and routes.queues == {"orders": 5}


def test_an_answer_about_a_topic_that_was_gone_meanwhile_does_not_bring_it_back(
    routes: Routes,
) -> None:
    asked = refreshed(routes)
    routes.note(TopicNotFound("there is no topic of this name"), "orders")
    assert routes.routed(messages.Routed(asked.request, "orders", 4), 40_000) == []
    assert routes.queues == {}


def test_what_waits_since_a_refusal_waits_for_an_answer_that_came_after_it(
    routes: Routes,
) -> None:
    before, parked = refreshed(routes), waiting()
    routes.park(parked)
    (after,) = sent(routes, 31_001)
    assert routes.routed(messages.Routed(before.request, "orders", 4), 31_002) == []
    assert routes.routed(messages.Routed(after.request, "orders", 3), 31_003) == [parked]


def test_many_topics_are_asked_for_in_turn(routes: Routes) -> None:
    names = {"orders"} | {f"t{number}" for number in range(REFRESHED_AT_ONCE + 50)}
    for name in sorted(names):
        routes.routed(messages.Routed(routes.number(), name, 1), 1000)
    asked: list[str] = []
    for _ in range(3):
        routes.ask_again(1000 + REFRESH_MS)
        now = [each.topic for each in sent(routes, 1000 + REFRESH_MS)]
        assert len(now) <= REFRESHED_AT_ONCE
        asked += now
    assert sorted(asked) == sorted(names), "each once"


def test_a_producer_that_cannot_send_looks_for_its_broker(routes: Routes) -> None:
    assert not routes.aim.away
    routes.not_connected()
    assert routes.aim.away


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
