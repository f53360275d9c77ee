"""A group's settings that one broker was given are obeyed by the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.consumer import GroupConsumer
from penstock.dataframes import Store
from penstock.errors import NoPermission

pytestmark = pytest.mark.takes(40)
TOPIC, QUEUES, GROUP = "orders", 4, "billing"
QUIET_MS = 5000  # for a consumer that is to get nothing


def test_what_is_set_on_one_side_is_obeyed_on_the_other(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    broker = f"127.0.0.1:{place.port}"
    for words in (f"-g {GROUP} -r 2", "-g stopped -s false"):
        said = client.ask("mqadmin", words=["updateSubGroup", "-b", broker, *words.split()])
        assert "success" in said, said
    sides.send_theirs(range(4))
    client.ask("close")
    theirs.stop()

    ours = penstock(place)
    # twice more, and then it is dead
    calls = sides.consume_ours(12, lambda message: message.retry(delay=0.05))
    assert Counter(row["times"] for row in calls) == {0: 4, 1: 4, 2: 4}
    stopped = GroupConsumer(store=place.store, group="stopped", topics=TOPIC)
    with stopped as consumer, pytest.raises(NoPermission):
        consumer.poll(0.1)
    with GroupAdmin(store=place.store) as admin:
        admin.set("stopped", {"consumeEnable": True})
        admin.set("barred", {"consumeEnable": False})
        admin.set(GROUP, {"retryMaxTimes": 1})
    ours.stop()
    letters = Store(place.store).to_arrow(f"%DLQ%{GROUP}", columns=["body"])["body"].to_pylist()
    assert sorted(map(int, letters)) == [*range(4)]

    theirs = rocketmq(place)
    client.open(place)
    assert len(sides.consume_theirs(4, group="stopped")) == 4
    assert sides.consume_theirs(1, group="barred", idle_ms=QUIET_MS) == []
    words = ["getConsumerConfig", "-g", GROUP, "-n", place.name_server]
    assert "retryMaxTimes=1" in "".join(client.ask("mqadmin", words=words).split())
    client.ask("close")
    theirs.stop()
    record_property("messages", 8)
