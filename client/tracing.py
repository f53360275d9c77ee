"""W3C trace context through messages, and spans of OpenTelemetry where it is installed.

    producer = trace(broker.producer())          send puts `traceparent` among the properties
    with handling(message): ...                  what is sent within belongs to the message's trace

The span of a send ends with the message's outcome, the span of a handler with its block. Without
OpenTelemetry (the extra [otel]) there are no spans, and the context is passed on as it came. For a
producer that is not traced, none of this costs anything, not even a check on each send.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import msgspec

from penstock.client.core.sending.encoding import SINGLE, BatchMessage, Body

__all__ = ["handling", "trace"]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_handed_on: ContextVar[dict[str, str] | None] = ContextVar("penstock_trace", default=None)
_Producer = TypeVar("_Producer")


@cache
def _api() -> Any:
    """The module opentelemetry.trace; None if it is not installed."""
    try:
        from opentelemetry import trace as found
    except ModuleNotFoundError:
        return None
    return found


def context_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The trace context among a message's properties; empty if there is no valid one."""
    found = {name: properties[name] for name in (TRACEPARENT, TRACESTATE) if name in properties}
    return found if _FORM.fullmatch(found.get(TRACEPARENT, "")) else {}


def trace(producer: _Producer) -> _Producer:
    """Make the `send`, `send_batch` and transactions of a producer, synchronous or not, pass the
    present trace on; return it. The messages of a batch share a span, as they share an outcome."""
    traced: Any = producer
    plain_send, plain_batch, plain_half = traced.send, traced.send_batch, traced._send_half

    def send(topic: str, body: Any, **fields: Any) -> Any:
        def put(context: dict[str, str]) -> Any:
            if context:  # else the arguments stay as they are, and a plain message on the fast path
                fields["properties"] = {**context, **(fields.get("properties") or {})}
            return plain_send(topic, body, **fields)

        return _spanned(topic, put)

    def send_batch(topic: str, messages: Any, **fields: Any) -> Any:
        is_batch = isinstance(messages, Iterable) and not isinstance(messages, SINGLE)
        batch = list(messages) if is_batch else messages  # what is not a batch is refused later

        def put(context: dict[str, str]) -> Any:
            given = [_with(context, each) for each in batch] if is_batch and context else batch
            return plain_batch(topic, given, **fields)

        return _spanned(topic, put, len(batch) if is_batch else 0)

    def send_half(topic: str, message: BatchMessage, *rest: Any) -> Any:
        return _spanned(topic, lambda context: plain_half(topic, _with(context, message), *rest))

    traced.send, traced.send_batch, traced._send_half = send, send_batch, send_half
    return producer


def _with(context: Mapping[str, str], message: BatchMessage | Body) -> BatchMessage:
    made = message if isinstance(message, BatchMessage) else BatchMessage(message)
    return msgspec.structs.replace(made, properties={**context, **(made.properties or {})})


def _spanned(topic: str, put: Callable[[dict[str, str]], Any], batch: int = 0) -> Any:
    """What `put` returns, called with the context of a new span that ends with the outcome."""
    span, context = _sending(topic, batch)
    try:
        outcome = put(context)
    except BaseException as error:
        _end(span, error)
        raise
    if hasattr(outcome, "add_done_callback"):
        if span is not None:
            outcome.add_done_callback(lambda done: _end(span, _error_of(done)))
    elif isinstance(outcome, Awaitable):
        return _awaited(span, outcome)
    else:
        _end(span, None)
    return outcome


async def _awaited(span: Any, outcome: Awaitable[Any]) -> Any:
    try:
        found = await outcome
    except BaseException as error:
        _end(span, error)
        raise
    _end(span, None)
    return found


@contextmanager
def handling(message: Any, group: str = "") -> Iterator[None]:
    """Within the block the message is handled, and its trace is the present one."""
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


def _sending(topic: str, batch: int) -> tuple[Any, dict[str, str]]:
    """A span for a send of `batch` messages (0: a single one), and the context to pass on."""
    api = _api()
    if api is None:
        return None, _handed_on.get() or {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes: dict[str, str | int] = {**_attributes(topic, "send")}
    if batch:
        attributes["messaging.batch.message_count"] = batch
    span = api.get_tracer("penstock").start_span(
        f"send {topic}", kind=api.SpanKind.PRODUCER, attributes=attributes
    )
    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context, api.set_span_in_context(span))
    return span, context


def _attributes(topic: str, what: str) -> dict[str, str]:
    """Attributes named by OpenTelemetry's conventions for messaging."""
    return {
        "messaging.system": "penstock",
        "messaging.destination.name": topic,
        "messaging.operation.type": what,
    }


def _error_of(future: Any) -> BaseException | None:
    """The error of a future that is done, if any; an asyncio future may have been cancelled."""
    cancelled = getattr(future, "cancelled", None)
    if cancelled is not None and cancelled():
        return None
    seen = getattr(future, "seen", None)
    error: BaseException | None = future.exception()
    if seen is False:
        future.seen = False  # the span asked, not the program, so `flush` still raises the error
    return error


def _end(span: Any, error: BaseException | None) -> None:
    if span is None:
        return
    if error is not None:
        span.record_exception(error)
        span.set_status(_api().StatusCode.ERROR, str(error))
    span.end()
