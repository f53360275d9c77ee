"""A consumer on a topic where nothing happens."""

from __future__ import annotations

import time
from typing import Any

from penstock.client import Consumer, Producer


def test_a_quiet_topic_is_no_silent_broker(broker: Any) -> None:
    """The pull is asked again and again, and is answered all the same when its wait is over."""
    with Producer(broker.produce) as producer:
        producer.send("quiet", b"first").result(10)
        with Consumer(broker.consume, "quiet", timeout_ms=1000) as consumer:
            assert [message.body for message in consumer.poll(10)] == [b"first"]
            began = time.monotonic()
            assert consumer.poll(2.5) == []
            assert time.monotonic() - began > 2.4
            producer.send("quiet", b"second").result(10)
            assert [message.body for message in consumer.poll(10)] == [b"second"]
