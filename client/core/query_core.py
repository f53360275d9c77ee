"""Asking a broker for messages by key or id, without sockets: requests out, messages in.

One question at a time. An unanswered one is sent again with the same number, which is safe: the
reader keeps one question per client.
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from penstock.client.core.aim import Aim
from penstock.client.core.arguments import check_at_least, check_ms, check_text, check_whole
from penstock.client.core.message import Message, split_records
from penstock.client.core.timeouts import answer_too_long, silent
from penstock.shared.errors import InvalidArgument
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.names import check_topic
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, error_from_refusal

REPEAT_MS = 500
DEFAULT_MAX_NUM = 32
_MAX_TIME_MS = (1 << 62) - 1

Time = dt.datetime | int | None


class Question(NamedTuple):
    """What is asked for; its number is filled in when it is sent."""

    topic: str = ""
    key: str = ""
    max_num: int = 0
    begin_ms: int = 0
    end_ms: int = 0
    unique: bool = False
    message_id: str = ""


def by_key(topic: str, key: str, max_num: int, begin: Time, end: Time) -> Question:
    """The newest messages of a topic with this key, in a time range if one is given."""
    if not check_text("key", key):
        raise InvalidArgument("the key is empty", repr(key), "name a key")
    max_num = check_at_least("max_num", max_num, 1)
    begin_ms = 0 if begin is None else _ms("begin", begin)
    end_ms = _MAX_TIME_MS if end is None else _ms("end", end)
    if begin_ms > end_ms:
        raise InvalidArgument(
            "the time range ends before it begins", f"{begin} to {end}", "exchange the two"
        )
    return Question(check_topic(check_text("topic", topic)), key, max_num, begin_ms, end_ms)


def by_unique_key(topic: str, unique_key: str) -> Question:
    """The messages of a topic that a producer gave this UNIQ_KEY: one, unless it was sent twice."""
    check_text("unique_key", unique_key)
    return by_key(topic, unique_key, DEFAULT_MAX_NUM, None, None)._replace(unique=True)


def by_id(message_id: str) -> Question:
    """The message that an offsetMsgId names."""
    parse_message_id(check_text("message_id", message_id))
    return Question(message_id=message_id)


def _ms(name: str, time: dt.datetime | int) -> int:
    """A datetime, or ms since 1970, as ms."""
    if isinstance(time, dt.datetime):
        try:
            ms = int(time.timestamp() * 1000)
        except (ValueError, OverflowError):  # a local time at either end of the calendar
            ms = -1
    else:
        ms = check_whole(name, time)
    if not 0 <= ms <= _MAX_TIME_MS:
        raise InvalidArgument(
            f"{name} is before 1970, or too far ahead", time, "give ms since 1970, or a datetime"
        )
    return ms


class QueryCore:
    """One question at a time, from `ask` until `found` is there."""

    def __init__(self, endpoint: str, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._timeout_ms = check_ms("timeout_ms", timeout_ms)
        self._request = 0
        self._question = Question()
        self.aim = Aim()
        self._began_ms = self._asked_ms = 0
        self.found: list[Message] | None = None

    def ask(self, question: Question, now_ms: int) -> None:
        """Begin a question; an unanswered one before it is forgotten."""
        self._request += 1
        self.found = None
        self._question = question
        self._began_ms, self._asked_ms = now_ms, now_ms - REPEAT_MS

    def _message(self) -> messages.Query | messages.QueryById:
        question = self._question
        if question.message_id:
            return messages.QueryById(self._request, question.message_id, self.aim.run)
        return messages.Query(self._request, *question[:-1], self.aim.run)

    def outgoing(self, now_ms: int) -> bytes | None:
        """What to send now, if anything. Raises BrokerTimeout when nobody has answered in time."""
        if self.found is not None:
            return None
        if now_ms - self._began_ms > self._timeout_ms:
            raise self.aim.elsewhere or silent(self._endpoint, self._timeout_ms)
        if now_ms - self._asked_ms < REPEAT_MS:
            return None
        self._asked_ms = now_ms
        return encode(self._message())

    def not_connected(self) -> None:
        """The request could not be sent: it is repeated."""
        self.aim.away = True

    def given_up(self, max_bytes: int) -> None:
        """The answer was too long to receive. Raises ProtocolError."""
        raise answer_too_long(self._endpoint, max_bytes)

    def received(self, parts: list[bytes]) -> None:
        """Take an answer; one to an older question is dropped. Raises the error of a refusal."""
        answer = messages.decode_consume_answer(parts[0])
        # the broker refuses a request that it cannot read or serve without giving its number
        refused = isinstance(answer, messages.Refused) and not answer.request
        if self.found is not None or answer.request != self._request and not refused:
            return
        if not self.aim.heard(answer):
            return
        if isinstance(answer, messages.Refused):
            raise error_from_refusal(answer)
        if isinstance(answer, messages.Queried):
            self.found = split_records(parts[1])
