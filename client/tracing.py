"""W3C trace context through messages, and spans of OpenTelemetry where it is installed.

    producer = trace(broker.producer())          send puts `traceparent` among the properties
    with handling(message): ...                  what is sent within belongs to the message's trace

The span of a send ends with the message's outcome, the span of a handler with its block. Without
OpenTelemetry (the extra [otel]) there are no spans, and the context is handed on as it came. A
producer that is not traced has none of it: not even a question on each send.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

__all__ = ["handling", "trace"]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_handed_on: ContextVar[dict[str, str] | None] = ContextVar("penstock_trace", default=None)
_Producer = TypeVar("_Producer")


@cache
def _api() -> Any:
    """The module opentelemetry.trace; None where it is not installed."""
    try:
        from opentelemetry import trace as found
    except ModuleNotFoundError:
        return None
    return found


def context_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The trace context among a message's properties; empty where it has none that is valid."""
    found = {name: properties[name] for name in (TRACEPARENT, TRACESTATE) if name in properties}
    return found if _FORM.fullmatch(found.get(TRACEPARENT, "")) else {}


def trace(producer: _Producer) -> _Producer:
    """The same producer, synchronous or not, whose `send` hands the present trace on."""
    traced: Any = producer
    plain = traced.send

    def send(topic: str, body: Any, **fields: Any) -> Any:
        span, context = _sending(topic)
        if context:  # else what was given stays as it is, and a plain message takes the short way
            fields["properties"] = {**context, **(fields.get("properties") or {})}
        try:
            future = plain(topic, body, **fields)
        except BaseException as error:
            _end(span, error)
            raise
        if span is not None:
            future.add_done_callback(lambda done: _end(span, _error_of(done)))
        return future

    traced.send = send
    return producer


@contextmanager
def handling(message: Any, group: str = "") -> Iterator[None]:
    """Within the block the message is worked on: its trace is the present one."""
    context, api = context_of(message.properties), _api()
    if api is None:
        token = _handed_on.set(context)
        try:
            yield
        finally:
            _handed_on.reset(token)
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = {
        **_attributes(message.topic, "process"),
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.message.id": message.message_id,
        **({"messaging.consumer.group.name": group} if group else {}),
    }
    with api.get_tracer("penstock").start_as_current_span(
        f"process {message.topic}",
        context=TraceContextTextMapPropagator().extract(context),
        kind=api.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield


def _sending(topic: str) -> tuple[Any, dict[str, str]]:
    """A span for a message that is about to be sent, and the context that it takes along."""
    api = _api()
    if api is None:
        return None, _handed_on.get() or {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    span = api.get_tracer("penstock").start_span(
        f"send {topic}", kind=api.SpanKind.PRODUCER, attributes=_attributes(topic, "send")
    )
    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context, api.set_span_in_context(span))
    return span, context


def _attributes(topic: str, what: str) -> dict[str, str]:
    """The names are OpenTelemetry's conventions for messaging."""
    return {
        "messaging.system": "penstock",
        "messaging.destination.name": topic,
        "messaging.operation.type": what,
    }


def _error_of(future: Any) -> BaseException | None:
    """How a future has ended; one of asyncio may have been cancelled."""
    cancelled = getattr(future, "cancelled", None)
    if cancelled is not None and cancelled():
        return None
    seen = getattr(future, "seen", None)
    error: BaseException | None = future.exception()
    if seen is False:
        future.seen = False  # the span has asked, and not the program: `flush` still raises it
    return error


def _end(span: Any, error: BaseException | None) -> None:
    if span is None:
        return
    if error is not None:
        span.record_exception(error)
        span.set_status(_api().StatusCode.ERROR, str(error))
    span.end()
