"""What is told of messages that failed and that nobody has asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.client.core.sending.failures import MOST_TOPICS_NAMED, named


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
