"""What is told of messages that failed and that nobody has asked for."""

from __future__ import annotations

from collections import Counter
from threading import Condition

import pytest

from penstock.client.core.sending.failures import MOST_KEPT, MOST_TOPICS_NAMED, Failures, named
from penstock.client.core.sending.frames import Sender, SendFuture
from penstock.errors import StoreUnavailable
from penstock.shared.formats.message_id import KeyOrigin

SENDER = Sender(Condition(), KeyOrigin("0A" * 10, 0))


def failed(what: str) -> SendFuture:
    future = SendFuture(SENDER, 0)
    future.fail(StoreUnavailable(what))
    return future


@pytest.mark.parametrize(
    ("others", "said"),
    [(0, ""), (1, " and others of 1 more topic"), (2, " and others of 2 more topics")],
)
def test_the_topics_with_most_messages_are_named_and_the_others_are_counted(
    others: int, said: str
) -> None:
    counts = Counter({f"t{number}": 9000 - number for number in range(MOST_TOPICS_NAMED + others)})
    text = named(counts)
    assert text.startswith("9,000 of t0, 8,999 of t1")
    assert text.endswith(f"of t{MOST_TOPICS_NAMED - 1}{said}")


def test_three_topics_are_named_those_with_most_messages_first() -> None:
    assert named(Counter(a=1, b=2, c=3)) == "3 of c, 2 of b, 1 of a"
    text = "4 of d, 3 of c, 2 of b and others of 1 more topic"
    assert named(Counter(a=1, b=2, c=3, d=4)) == text


def test_all_messages_are_counted_and_the_first_error_is_told() -> None:
    failures = Failures()
    for topic, messages, what in (("b", 1, "first"), ("a", 3, "second"), ("a", 2, "third")):
        failures.add(topic, messages, failed(what))
    lost = failures.take()
    assert lost is not None and lost.topics == {"a": 5, "b": 1}
    assert str(lost) == "6 messages were not acknowledged: 5 of a, 1 of b"
    error = lost.exception()
    assert isinstance(error, StoreUnavailable) and error.what == "first"
    assert error.__notes__ == [f"in all, {lost}"]


@pytest.mark.parametrize(
    ("messages", "said"), [(1, "1 message was not ackn"), (2, "2 messages were not ackn")]
)
def test_what_was_told_already_is_not_told_with_a_later_failure(messages: int, said: str) -> None:
    failures = Failures()
    failures.add("a", 7, failed("earlier"))
    assert failures.take() is not None and failures.take() is None
    failures.add("a", messages, failed("later"))
    lost = failures.take()
    assert lost is not None and lost.topics == {"a": messages}
    assert str(lost) == f"{said}owledged: {messages} of a"
    error = lost.exception()
    assert isinstance(error, StoreUnavailable) and error.what == "later"
    assert hasattr(error, "__notes__") == (messages > 1), "one message is all there is to tell"


def test_whoever_asks_late_is_told_once_more_of_the_oldest_failures_alone() -> None:
    """Of many failures the oldest count as soon as there is no room for them."""
    failures = Failures()
    futures = [failed(str(number)) for number in range(MOST_KEPT + 2)]
    for future in futures:
        failures.add("a", 1, future)
    for future in (*futures[:3], futures[-1]):
        assert future.exception(0) is not None
    lost = failures.take()
    assert lost is not None and lost.topics == {"a": MOST_KEPT}
    assert isinstance(lost.error, StoreUnavailable) and lost.error.what == "0"
