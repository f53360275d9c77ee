"""What may wait: the writer takes delayed records in their form, for queues that exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.writer import Writer
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.messaging.delayed import MAX_DELAY_MS
from penstock.shared.messaging.system_topics import HALF_TOPIC, TIMER_TOPIC
from penstock.shared.wire.messages import Appended, QueueRun, Refused

Maker = Callable[..., Any]
PLACE = {"REAL_TOPIC": "orders", "REAL_QID": "3"}


@pytest.fixture
def put(pipeline: Maker, client: Maker, frame: Maker) -> Callable[..., Any]:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    now_ms = broker.clock.now_ms()

    def put(topic: str, queue_id: int, batch: bool = False, due: int = 0, **own: str) -> Any:
        if due:
            own["TIMER_OUT_MS"] = str(now_ms + due)
        raw = frame(topic, queue_id, [b"x"], "K", properties=own)
        (answer,) = producer.append_runs([QueueRun(topic, queue_id, 1, batch)], raw)
        return answer

    return put


def test_delayed_records_are_taken_in_their_form(put: Callable[..., Any]) -> None:
    assert isinstance(put(SCHEDULE_TOPIC, 2, DELAY="3", **PLACE), Appended)
    assert isinstance(put(SCHEDULE_TOPIC, 17, DELAY="18", **PLACE), Appended)
    assert isinstance(put(TIMER_TOPIC, 0, due=5, **PLACE), Appended)
    assert isinstance(put(TIMER_TOPIC, 0, due=-5, **PLACE), Appended), "it is delivered at once"
    assert isinstance(put(TIMER_TOPIC, 0, due=5, TIMER_DEL_UNIQKEY="orders+K", **PLACE), Appended)
    assert isinstance(put("orders", 3, DELAY="3", **PLACE), Appended), "one that has been delivered"
    retry = {"REAL_TOPIC": "%RETRY%g", "REAL_QID": "0"}
    assert isinstance(put(SCHEDULE_TOPIC, 2, DELAY="3", **retry), Appended), "made when needed"


@pytest.mark.parametrize(
    "topic, queue_id, own, status",
    [
        (SCHEDULE_TOPIC, 2, {"DELAY": "4", **PLACE}, "MESSAGE_ILLEGAL"),
        (SCHEDULE_TOPIC, 2, PLACE, "MESSAGE_ILLEGAL"),
        (SCHEDULE_TOPIC, 2, {"DELAY": "3"}, "MESSAGE_ILLEGAL"),
        (SCHEDULE_TOPIC, 18, {"DELAY": "19", **PLACE}, "QUEUE_NOT_EXIST"),
        (SCHEDULE_TOPIC, 2, {"DELAY": "3", **PLACE, "REAL_QID": "4"}, "QUEUE_NOT_EXIST"),
        (SCHEDULE_TOPIC, 2, {"DELAY": "3", **PLACE, "REAL_TOPIC": "none"}, "TOPIC_NOT_EXIST"),
        (SCHEDULE_TOPIC, 2, {"DELAY": "3", **PLACE, "REAL_TOPIC": HALF_TOPIC}, "TOPIC_NOT_EXIST"),
        (TIMER_TOPIC, 0, PLACE, "MESSAGE_ILLEGAL"),
        (TIMER_TOPIC, 0, {"due": MAX_DELAY_MS + 120_000, **PLACE}, "MESSAGE_ILLEGAL"),
        (TIMER_TOPIC, 0, {"due": -1, "TIMER_DEL_UNIQKEY": "orders+K", **PLACE}, "MESSAGE_ILLEGAL"),
        (TIMER_TOPIC, 0, {"due": 9, "batch": True, **PLACE}, "MESSAGE_ILLEGAL"),
        ("orders", 3, {"DELAY": "3"}, "MESSAGE_ILLEGAL"),
    ],
)
def test_what_could_not_be_delivered_is_refused(
    put: Callable[..., Any], topic: str, queue_id: int, own: dict[str, Any], status: str
) -> None:
    answer = put(topic, queue_id, **own)
    assert isinstance(answer, Refused) and answer.status == status and answer.what
