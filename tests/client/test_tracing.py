"""Traces through messages: with OpenTelemetry's SDK, and handed on where nothing is installed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock
from penstock.client import BatchMessage, GroupMessage, Producer, aio
from penstock.client.app import App
from penstock.client.tracing import context_of, trace
from penstock.shared.errors import InvalidMessage
from penstock.testing import AppClient, Broker

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    api.set_tracer_provider(provider)
    return exporter


def test_a_trace_goes_through_a_message_and_its_handler(spans: InMemorySpanExporter) -> None:
    spans.clear()
    app = App()

    @app.on("traced", group="tracers")
    def handle(message: GroupMessage) -> str:
        again: Producer = app.state.producer
        return again.send("onward", b"x").result(60).unique_key

    with penstock.open() as broker:
        app.state.producer = trace(broker.producer())
        app.state.producer.create_topic("onward", 1)
        with (
            AppClient(app, broker, 120) as client,
            api.get_tracer("test").start_as_current_span("request") as root,
        ):
            client._producer = trace(client._producer)
            client.send("traced", b"x", properties={"own": "kept"})
        (onward,) = broker.consumer("onward", follow=False)
        (first,) = broker.consumer("traced", follow=False)
    found = {span.name: span for span in spans.get_finished_spans()}
    trace_id = root.get_span_context().trace_id
    assert {span.context.trace_id for span in found.values() if span.context} == {trace_id}
    for child, parent in (
        ("send traced", "request"),
        ("process traced", "send traced"),
        ("send onward", "process traced"),
    ):
        parents, above = found[child].parent, found[parent].context
        assert parents is not None and above is not None and parents.span_id == above.span_id
    assert onward.properties["traceparent"].split("-")[1] == f"{trace_id:032x}"
    assert first.properties["own"] == "kept"
    handled = dict(found["process traced"].attributes or {})
    assert handled["messaging.consumer.group.name"] == "tracers"
    assert handled["messaging.operation.type"] == "process"


def test_a_failed_send_is_an_error_of_its_span(spans: InMemorySpanExporter, broker: Any) -> None:
    spans.clear()
    with Producer(broker.produce) as producer:
        trace(producer).create_topic("failing", 1)
        with pytest.raises(InvalidMessage):
            producer.send("failing", b"x", tags="a\x01b")
        with pytest.raises(InvalidMessage):
            producer.send("failing", b"x" * (producer.max_message_bytes + 1))
    (one, two) = spans.get_finished_spans()
    assert not one.status.is_ok and not two.status.is_ok and two.events[0].name == "exception"


def test_coroutines_are_traced_too(spans: InMemorySpanExporter, broker: Any) -> None:
    spans.clear()

    async def send() -> None:
        async with aio.Producer(broker.produce) as producer:
            await producer.create_topic("awaited", 1)
            await trace(producer).send("awaited", b"x")

    asyncio.run(send())
    assert [span.name for span in spans.get_finished_spans()] == ["send awaited"]


def test_batches_and_transactions_are_traced_too(spans: InMemorySpanExporter) -> None:
    spans.clear()

    async def send(broker: Broker) -> None:
        async with aio.Producer(store=broker.store, group="ends") as producer:
            trace(producer)
            await producer.send_batch(
                "whole", [b"3", BatchMessage(b"4", properties={"own": "kept"})]
            )
            async with producer.transaction("whole") as transaction:
                await transaction.send(b"5")

    with penstock.open() as broker:
        producer = trace(broker.producer(group="ends"))
        producer.create_topic("whole", 1)
        producer.send_batch("whole", iter([b"0", b"1"])).result(60)
        with producer.transaction("whole") as transaction:
            transaction.send(b"2", properties={"own": "kept"})
        asyncio.run(send(broker))
        with pytest.raises(InvalidMessage):
            producer.send_batch("whole", b"one message is no batch")
        found = {
            bytes(each.body): each.properties for each in broker.consumer("whole", follow=False)
        }
    done = spans.get_finished_spans()
    assert [span.name for span in done] == ["send whole"] * 5
    assert [span.status.is_ok for span in done] == [True] * 4 + [False]
    counts = [(span.attributes or {}).get("messaging.batch.message_count") for span in done]
    assert counts == [2, None, 2, None, None]
    of_span = [f"{span.context.span_id:016x}" for span in done if span.context]
    of_message = [found[b"%d" % number]["traceparent"].split("-")[2] for number in range(6)]
    assert of_message == [of_span[at] for at in (0, 0, 1, 2, 2, 3)]
    assert found[b"2"]["own"] == found[b"4"]["own"] == "kept"


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from penstock.client import Consumer, Producer
from penstock.client.tracing import handling, trace
produce, consume = sys.argv[1:]
with Producer(produce) as producer, Consumer(consume, "bare", follow=False) as consumer:
    (message,) = consumer
    trace(producer)
    with handling(message):
        producer.send("bare", b"inside").result(60)
    producer.send("bare", b"outside").result(60)
with Consumer(consume, "bare", follow=False) as consumer:
    print([(each.body, each.properties.get("traceparent")) for each in consumer][1:])
"""


def test_without_opentelemetry_the_context_is_handed_on(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("bare", 1)
        producer.send("bare", b"x", properties={"traceparent": PARENT}).result(60)
    command = [sys.executable, "-c", WITHOUT, broker.produce, broker.consume]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.stdout == f"[(b'inside', '{PARENT}'), (b'outside', None)]\n", done.stderr


@pytest.mark.parametrize("wrong", ["", "00-1-2-3", PARENT.upper(), f"{PARENT} "])
def test_a_context_that_is_not_valid_is_not_handed_on(wrong: str) -> None:
    assert context_of({"traceparent": wrong, "tracestate": "a=b"}) == {}
    assert context_of({"traceparent": PARENT, "more": "x"}) == {"traceparent": PARENT}
