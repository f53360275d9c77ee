"""What a caller is told when its time is over: how long was waited, for what, from whom.

All of it is BrokerTimeout, which `except TimeoutError` catches like any other, but for an answer
that nobody wants to wait for. Pure.
"""

from __future__ import annotations

from penstock.shared.errors import BrokerTimeout, ProtocolError

STATUS = "penstock status shows whether a broker runs"
_MAY_BE_STORED = "it was on its way and may be stored: look for its unique_key before sending again"


class Timeouts:
    """Those of one client. `connected` is what it last knew of its connection."""

    __slots__ = ("endpoint", "timeout_ms", "connected")

    def __init__(self, endpoint: str, timeout_ms: int) -> None:
        self.endpoint, self.timeout_ms = endpoint, timeout_ms
        self.connected = True

    def message(self, what: str, may_be_stored: bool) -> BrokerTimeout:
        """A message has waited for the whole of the client's timeout."""
        hint = f"{_MAY_BE_STORED}; {STATUS}" if may_be_stored else STATUS
        return BrokerTimeout(f"{what} within {self.timeout_ms} ms", self._where, hint)

    def flush(self, messages: int, timeout_s: float | None) -> BrokerTimeout:
        """Somebody waited for all outcomes."""
        have = "1 message has" if messages == 1 else f"{messages:,} messages have"
        return BrokerTimeout(
            f"{have} no outcome after {timeout_s} s",
            self._where,
            f"they are still being sent: flush again; {STATUS}",
        )

    def question(self, timeout_s: float | None) -> BrokerTimeout:
        """Somebody waited for the answer to a question."""
        return BrokerTimeout(
            f"the broker has not answered within {timeout_s} s", self._where, STATUS
        )

    def request(self, topic: str, correlation_id: str, timeout_s: float) -> BrokerTimeout:
        """Somebody waited for a request to be stored."""
        return BrokerTimeout(
            f"the broker has not acknowledged a request within {timeout_s} s",
            f"{self._where}: request {correlation_id} of topic {topic}",
            f"it may be stored, and answered: nobody waits for that any more; {STATUS}",
        )

    def reply(self, topic: str, correlation_id: str, timeout_s: float) -> BrokerTimeout:
        """Somebody waited for the reply to a request."""
        return BrokerTimeout(
            f"no reply has come within {timeout_s} s",
            f"to request {correlation_id} of topic {topic}",
            "the request is stored: see whether somebody consumes the topic, or wait for longer",
        )

    @property
    def _where(self) -> str:
        return self.endpoint if self.connected else f"{self.endpoint} (there is no connection)"


def no_outcome(endpoint: str, timeout_s: float | None) -> BrokerTimeout:
    """Somebody waited for the outcome of one message."""
    return BrokerTimeout(
        f"a message has no outcome after {timeout_s} s",
        endpoint or None,
        f"it may still be stored: ask its future again; {STATUS}",
    )


def silent(endpoint: str, silent_ms: int) -> BrokerTimeout:
    """A consumer or a query has asked for `silent_ms` without an answer."""
    return BrokerTimeout(f"the broker has not answered for {silent_ms} ms", endpoint, STATUS)


def answer_too_long(endpoint: str, max_bytes: int) -> ProtocolError:
    """The connection of a consumer or a query was closed for what came by it."""
    return ProtocolError(
        f"an answer was longer than {max_bytes} bytes, or not in a broker's protocol",
        endpoint,
        "messages with longer bodies are for a Consumer(max_body_bytes=...)",
    )
