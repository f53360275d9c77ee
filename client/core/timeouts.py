"""Time without an answer: when to ask again, and what a caller is told when the time is over.

    asked -> again, each time after twice as long -> answered, or silent

A pull that the reader holds has no answer for seconds. There are many consumers, and quiet ones
must cost the reader next to nothing, so clients that notice a lost connection repeat ever less.
The error is a BrokerTimeout, which `except TimeoutError` catches, and says how long the caller has
waited, for what and for whom. Only an answer that is too long is a ProtocolError instead. Pure.
"""

from __future__ import annotations

from penstock.shared.errors import BrokerTimeout, ProtocolError

REPEAT_MS, MAX_REPEAT_MS = 200, 2500
STATUS = "penstock status shows whether a broker runs"
_MAY_BE_STORED = "it was on its way and may be stored: look for its unique_key before sending again"


class Timeouts:
    """The timeouts of one client. `connected` is what it last knew of its connection."""

    __slots__ = ("endpoint", "timeout_ms", "connected")

    def __init__(self, endpoint: str, timeout_ms: int) -> None:
        self.endpoint, self.timeout_ms = endpoint, timeout_ms
        self.connected = True

    def message(self, what: str, may_be_stored: bool) -> BrokerTimeout:
        """A message has waited for the client's whole timeout."""
        hint = f"{_MAY_BE_STORED}; {STATUS}" if may_be_stored else STATUS
        return BrokerTimeout(f"{what} within {self.timeout_ms} ms", self._where, hint)

    def flush(self, messages: int, timeout_s: float | None) -> BrokerTimeout:
        """A caller waited for all outcomes."""
        have = "1 message has" if messages == 1 else f"{messages:,} messages have"
        return BrokerTimeout(
            f"{have} no outcome after {timeout_s} s",
            self._where,
            f"they are still being sent: flush again; {STATUS}",
        )

    def question(self, timeout_s: float | None) -> BrokerTimeout:
        """A caller waited for the answer to a question."""
        return BrokerTimeout(
            f"the broker has not answered within {timeout_s} s", self._where, STATUS
        )

    def request(self, topic: str, correlation_id: str, timeout_s: float) -> BrokerTimeout:
        """A caller waited for a request to be stored."""
        return BrokerTimeout(
            f"the broker has not acknowledged a request within {timeout_s} s",
            f"{self._where}: request {correlation_id} of topic {topic}",
            f"it may be stored, and answered: nobody waits for that any more; {STATUS}",
        )

    def reply(self, topic: str, correlation_id: str, timeout_s: float) -> BrokerTimeout:
        """A caller waited for the reply to a request."""
        return BrokerTimeout(
            f"no reply has come within {timeout_s} s",
            f"to request {correlation_id} of topic {topic}",
            "the request is stored: see whether somebody consumes the topic, or wait for longer",
        )

    @property
    def _where(self) -> str:
        return self.endpoint if self.connected else f"{self.endpoint} (there is no connection)"


def no_outcome(endpoint: str, timeout_s: float | None) -> BrokerTimeout:
    """A caller waited for the outcome of one message."""
    return BrokerTimeout(
        f"a message has no outcome after {timeout_s} s",
        endpoint or None,
        f"it may still be stored: ask its future again; {STATUS}",
    )


def silent(endpoint: str, silent_ms: int) -> BrokerTimeout:
    """A consumer or a query has asked for `silent_ms` without getting an answer."""
    return BrokerTimeout(f"the broker has not answered for {silent_ms} ms", endpoint, STATUS)


def answer_too_long(endpoint: str, max_bytes: int) -> ProtocolError:
    """A consumer's or a query's connection was closed because of what came by it."""
    return ProtocolError(
        f"an answer was longer than {max_bytes} bytes, or not in a broker's protocol",
        endpoint,
        "messages with longer bodies are for a Consumer(max_body_bytes=...)",
    )


class Repeats:
    """When a request is sent again, for one request at a time."""

    __slots__ = ("_timeout_ms", "_hears_losses", "_pause_ms", "_asked_ms", "_silent_since_ms")

    def __init__(self, timeout_ms: int, hears_losses: bool) -> None:
        """`hears_losses`: whether `soon` is called when a connection is lost."""
        self._timeout_ms, self._hears_losses = timeout_ms, hears_losses
        self._pause_ms = REPEAT_MS
        self._asked_ms = self._silent_since_ms = 0

    @property
    def is_rare(self) -> bool:
        """Whether the next repeat is far off, unless a connection is lost."""
        return self._pause_ms > REPEAT_MS

    def begin(self, now_ms: int) -> None:
        """A new request is sent."""
        self._silent_since_ms, self._pause_ms = now_ms, REPEAT_MS
        self._asked_ms = now_ms

    def take_due(self, now_ms: int) -> bool:
        """Whether the request is to be sent again now. If so, it counts as sent."""
        if now_ms - self._asked_ms < self._pause_ms:
            return False
        if self._hears_losses:
            self._pause_ms = min(2 * self._pause_ms, MAX_REPEAT_MS)
        self._asked_ms = now_ms
        return True

    def soon(self) -> None:
        """The process that held the request may be gone: ask its successor soon."""
        self._pause_ms = REPEAT_MS

    def not_sent(self, now_ms: int) -> None:
        """The request could not be sent: try again in 10 ms."""
        self._pause_ms = REPEAT_MS
        self._asked_ms = now_ms - REPEAT_MS + 10

    def is_silent(self, now_ms: int) -> bool:
        """Whether no answer has come for the whole timeout. Time in which nothing drove the client,
        so that it did not ask, does not count."""
        away_ms = now_ms - self._asked_ms
        if away_ms > 2 * self._pause_ms:
            self._silent_since_ms += away_ms - self._pause_ms
        if now_ms - self._silent_since_ms <= self._timeout_ms:
            return False
        self._silent_since_ms = now_ms
        return True

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms there is nothing to do."""
        silent_ms = self._silent_since_ms + self._timeout_ms + 1
        return max(0, min(self._asked_ms + self._pause_ms, silent_ms) - now_ms)
