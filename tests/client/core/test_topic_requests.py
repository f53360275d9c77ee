"""Topics that an actor needs: each is asked for until it is there or refused for good."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.topic_requests import (
    AGAIN_MS,
    MAX_ASKED,
    MAX_WANTED,
    TopicChanges,
    WantedTopics,
    create_request,
    update_request,
)
from penstock.shared.errors import InvalidArgument, PenstockError, StoreUnavailable, TopicNotFound
from penstock.shared.wire import messages
from penstock.shared.wire.messages import CreateTopic, Routed, encode, refusal


def _asked(wanted: WantedTopics, now_ms: int) -> list[CreateTopic]:
    sent = [messages.decode_produce_request(each) for each in wanted.outgoing(now_ms)]
    assert all(isinstance(each, CreateTopic) and each.run == "run" for each in sent)
    return [each for each in sent if isinstance(each, CreateTopic)]


def _names(requests: list[CreateTopic]) -> list[tuple[int, str, int]]:
    return [(each.request, each.topic, each.queues) for each in requests]


def _told(wanted: WantedTopics, answer: Any) -> bool:
    return wanted.received([encode(answer)])


def test_without_an_answer_a_topic_is_asked_for_again_after_its_time_and_not_before() -> None:
    wanted = WantedTopics("run")
    wanted.want("a", 2)
    wanted.want("a", 5)
    assert _names(_asked(wanted, 100)) == [(1, "a", 2)], "once, as it was first wanted"
    wanted.want("b", 1)
    assert _names(_asked(wanted, 200)) == [(2, "b", 1)], "the other is under way"
    assert _asked(wanted, 100 + AGAIN_MS - 1) == []
    assert _names(_asked(wanted, 100 + AGAIN_MS)) == [(3, "a", 2)]
    assert _told(wanted, Routed(2, "b", 1)) and not _told(wanted, Routed(2, "b", 1))
    assert _asked(wanted, 200 + AGAIN_MS) == [], "it is there"
    assert not _told(wanted, Routed(1, "a", 2)), "an answer to a request that was given up"


def test_what_cannot_be_done_now_is_told_and_asked_for_again_and_what_cannot_be_is_not() -> None:
    wanted = WantedTopics("run")
    wanted.want("now", 1)
    wanted.want("never", 1)
    assert len(_asked(wanted, 0)) == 2
    full, bad = StoreUnavailable("full", "disk"), TopicNotFound("not allowed", "never")
    assert _told(wanted, refusal(full, 1)) and _told(wanted, refusal(bad, 2))
    assert [(topic, str(error)) for topic, error in wanted.refused()] == [
        ("now", str(full)),
        ("never", str(bad)),
    ]
    assert wanted.refused() == [], "told once"
    assert _asked(wanted, AGAIN_MS - 1) == []
    assert _names(_asked(wanted, AGAIN_MS)) == [(3, "now", 1)]


def test_what_could_not_be_sent_is_sent_at_the_next_turn() -> None:
    wanted = WantedTopics("run")
    wanted.want("a", 1)
    assert len(_asked(wanted, 0)) == 1
    wanted.not_connected()
    assert _names(_asked(wanted, 1)) == [(2, "a", 1)]


@pytest.mark.parametrize(
    "other", [refusal(PenstockError("no"), 1, 9), messages.TopicList(1, {}), Routed(7, "a", 1)]
)
def test_an_answer_to_somebody_else_is_left_to_them(other: Any) -> None:
    wanted = WantedTopics("run")
    assert not _told(wanted, other)
    wanted.want("a", 1)
    assert len(_asked(wanted, 0)) == 1
    assert not _told(wanted, other)
    assert wanted.refused() == [] and _asked(wanted, 1) == []


def test_no_more_are_asked_for_at_once_or_kept_than_the_limits() -> None:
    wanted = WantedTopics("run")
    for number in range(MAX_WANTED + 1):
        wanted.want(f"t{number}", 1)
    assert len(_asked(wanted, 0)) == MAX_ASKED and _asked(wanted, 1) == []
    done = 0
    while done < MAX_WANTED:
        for request in range(done + 1, done + 1 + MAX_ASKED):
            done += _told(wanted, Routed(request, "", 1))
        _asked(wanted, 2)
    assert done == MAX_WANTED and _asked(wanted, 10**9) == [], "the one too many was left"


@given(st.data())
def test_any_history_of_answers_ends_with_each_topic_there_or_refused(data: st.DataObject) -> None:
    wanted, now_ms = WantedTopics("run"), 0
    names = {f"t{number}" for number in range(5)}
    for name in sorted(names):
        wanted.want(name, 1)
    made, refused = set[str](), set[str]()
    for _ in range(200):
        now_ms += data.draw(st.sampled_from([1, AGAIN_MS - 1, AGAIN_MS])) if made else AGAIN_MS
        for each in _asked(wanted, now_ms):
            assert each.topic not in made | refused, "asked for in vain"
            match data.draw(st.sampled_from(["made", "lost", "full", "refused"])):
                case "made":
                    assert _told(wanted, Routed(each.request, each.topic, 1))
                    made.add(each.topic)
                case "full":
                    error: PenstockError = StoreUnavailable("full", "disk")
                    assert _told(wanted, refusal(error, each.request))
                case "refused":
                    error = TopicNotFound("not allowed", each.topic)
                    assert _told(wanted, refusal(error, each.request))
                    refused.add(each.topic)
        if made | refused == names:
            break
    for_good = {t for t, error in wanted.refused() if not isinstance(error, StoreUnavailable)}
    assert for_good == refused


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"read_queues": "1"}, "read_queues is not a whole number"),
        ({"write_queues": True}, "write_queues is not a whole number"),
        ({"perm": 1.5}, "perm is not a whole number"),
        ({"order": 1}, "order is not True or False"),
        ({"dry_run": 0}, "dry_run is not True or False"),
        ({"attributes": {1: "x"}}, "a key of attributes is not a str"),
        ({"attributes": {"x": 1}}, "a value of attributes is not a str"),
        ({"ends": {"0": 1}}, "a queue is not a whole number"),
    ],
)
def test_a_change_of_a_wrong_type_is_named(changes: TopicChanges, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what):
        update_request("orders", **changes)
    with pytest.raises(InvalidArgument, match="queues is not a whole number"):
        create_request("orders", "4")  # type: ignore[arg-type] # that is what is tried


def test_what_is_not_named_is_not_changed() -> None:
    request = update_request("orders")
    assert (request.read_queues, request.write_queues, request.perm, request.order) == (None,) * 4
    assert (request.attributes, request.ends, request.dry_run) == ({}, None, False)
    full = update_request(
        "orders", read_queues=1, write_queues=2, perm=6, order=False, attributes={"a": "b"},
        ends={0: 7}, dry_run=True,
    )  # fmt: skip
    assert (full.read_queues, full.write_queues, full.perm, full.order) == (1, 2, 6, False)
    assert (full.attributes, full.ends, full.dry_run) == ({"a": "b"}, {0: 7}, True)
