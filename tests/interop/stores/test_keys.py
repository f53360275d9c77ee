"""The same questions by key, to the real store and to ours, about index files of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index.lookup import IndexView, KeyQuery, look_up
from penstock.shared.store.directory import StoreDirectory

pytestmark = pytest.mark.takes(35)

TOPICS = {"orders": 4, "payments": 2}
MESSAGES = 4000  # in each topic
QUERIES = 1000
MOST = 64  # maxMsgsNumBatch
# several files, and chains of some length
SLOTS, ITEMS = 500, 3000


@pytest.mark.parametrize("writer", ["penstock", "rocketmq"])
def test_a_thousand_questions_by_key_have_one_answer(
    writer: str,
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    make_wanted: Callable[..., Any],
    make_queries: Callable[..., Any],
    produce: Callable[..., Any],
    sizes: tuple[int, int],
    record_property: Callable[[str, object], None],
) -> None:
    if writer == "penstock":
        broker = penstock(place, max_hash_slot_num=SLOTS, max_index_num=ITEMS)
        for topic, queues in TOPICS.items():
            produce(broker, make_wanted(topic, queues, MESSAGES, seed=queues)).finish()
    else:
        broker = rocketmq(place, maxHashSlotNum=SLOTS, maxIndexNum=ITEMS)
        client.open(place)
        for topic, queues in TOPICS.items():
            client.ask("create", topic=topic, queues=queues)
            sides.send(place, make_wanted(topic, queues, MESSAGES, seed=queues))
        client.ask("close")
    broker.stop()
    assert len(list((place.store / "index").iterdir())) >= 5

    stored = sides.stored(place)
    record_property("messages", len(stored))
    queries = make_queries(stored, QUERIES, seed=1)
    theirs = sides.found_by_classes(place, queries, (*sizes, SLOTS, ITEMS))
    ours = answers(place, queries)
    different = [(query, a, b) for query, a, b in zip(queries, ours, theirs, strict=True) if a != b]
    assert different == []
    assert sum(map(len, ours)) > QUERIES / 2, "hardly anything was found"


def answers(place: Any, queries: list[dict[str, Any]]) -> list[list[int]]:
    """The log offsets that our look-up finds, as a reader would."""
    with StoreDirectory(place.store) as store:

        def log_at(offset: int, size: int) -> bytes:
            return store.read_log(offset, min(size, store.segment_of(offset).end - offset))

        view = IndexView(place.store / "index", Geometry(SLOTS, ITEMS))
        found = []
        for query in queries:
            wanted = KeyQuery(**query | {"max_num": min(query["max_num"], MOST)}, unique=False)
            turns = look_up(view.files(), wanted, log_at)
            try:
                while True:
                    next(turns)
            except StopIteration as end:
                found.append([int.from_bytes(record[28:36], "big") for record in end.value])
        view.close()
    return found
