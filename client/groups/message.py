"""What a member of a group is given: a message that is to be acknowledged, and a batch of them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, Unpack, overload

from penstock.client.core.arguments import check_whole, wrong_type
from penstock.client.core.groups.member_core import Back
from penstock.client.core.groups.process_queue import Handful
from penstock.client.core.message import Message
from penstock.client.core.requests import Request
from penstock.client.core.send_options import ReplyFields
from penstock.client.core.sending.encoding import Body
from penstock.shared.errors import InvalidArgument
from penstock.shared.messaging.delayed import MAX_DELAY_MS, MAX_LEVEL
from penstock.shared.messaging.retried import shown_topic
from penstock.shared.names import RETRY_PREFIX
from penstock.shared.notebook import as_table

Delay = float | dt.timedelta | None
_T = TypeVar("_T")


class Judge(NamedTuple):
    """Takes the program's verdicts on messages, and sends replies; many messages share one."""

    # takes a handful, a place (-1: all), and None if it is done
    tell: Callable[[Handful, int, Back | None], None]
    # sends a reply to a request; in asyncio a coroutine function
    answer: Callable[[Request, Body, ReplyFields], Any]


def given_back(place: int, delay: Delay, level: int | None, reason: str) -> Back:
    """The program's `retry` of a message, checked. Raises InvalidArgument."""
    if level is not None:
        if delay is not None:
            raise InvalidArgument("both a delay and a level are given", level, "leave one out")
        if not -1 <= (number := check_whole("level", level)) <= MAX_LEVEL:
            raise InvalidArgument(
                "there is no such delay level", number, "levels go from 1 to 18; -1: a dead letter"
            )
        return Back(place, number, reason)
    if delay is None:
        return Back(place, 0, reason)
    seconds = delay.total_seconds() if isinstance(delay, dt.timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise wrong_type(InvalidArgument, "delay", delay, "a number of seconds, or a timedelta")
    if not 0 <= seconds * 1000 <= MAX_DELAY_MS:
        raise InvalidArgument(
            "a retry cannot wait this long", delay, "from 0 seconds to 40 days: timedelta(days=40)"
        )
    # rounded up, so that it never comes early
    return Back(place, 0, reason, math.ceil(seconds * 1000))


class GroupMessage:
    """A message of a group's topic, until it is acknowledged or given back.

    It has the fields of `Message`. For a retry, `topic` and `reconsume_times` are what the group's
    program expects: the topic that it was first sent to, and how often it has come again.
    """

    __slots__ = ("message", "_handful", "_place", "_judge")

    def __init__(self, message: Message, handful: Handful, place: int, judge: Judge) -> None:
        self.message, self._handful, self._place, self._judge = message, handful, place, judge

    def ack(self) -> None:
        """The message is handled. The group's offset moves past it once all before it are too."""
        self._judge.tell(self._handful, self._place, None)

    def retry(self, delay: Delay = None, *, level: int | None = None, reason: str = "") -> None:
        """Have it come again: after `delay` seconds, or by RocketMQ's delay `level`, else later
        each time. After the group's maximum it becomes a dead letter; level -1 makes it one at
        once. In an orderly queue it comes again before all others, which wait for it: after
        `delay`, else after the consumer's `suspend_ms`. Raises InvalidArgument.
        """
        back = given_back(self._place, delay, level, reason)
        self._judge.tell(self._handful, self._place, back)

    def reply(self, body: Body, **fields: Unpack[ReplyFields]) -> Any:
        """Answer a message that was sent by `request`. Returns a SendFuture, whose result is the
        reply's Receipt. With an asyncio consumer `await message.reply(...)` gives the Receipt.

        Takes `tags`, `keys` and `properties`. The consumer's own producer sends it, which connects
        with the first reply; closing the consumer waits for all replies. To lose no request, wait
        for the receipt before you acknowledge it. Raises InvalidMessage if the message is not a
        request, ConnectError, and what `Producer.send` raises.
        """
        return self._judge.answer(self, body, fields)

    @property
    def topic(self) -> str:
        """The topic that it was first sent to."""
        topic = self.message.topic
        if not topic.startswith(RETRY_PREFIX):
            return topic
        group = topic.removeprefix(RETRY_PREFIX)
        return shown_topic(topic, dict(self.message.properties), group)

    @property
    def reconsume_times(self) -> int:
        """How often it has come again."""
        here = self._handful.queue.failures
        again = self.message.reconsume_times
        return again + here.get(self.message.queue_offset, 0) if here else again

    @property
    def body(self) -> bytes:
        """What the producer sent. Raises UnreadableBody."""
        return self.message.body

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, kind: type[_T]) -> _T: ...
    def decode(self, kind: Any = Any) -> Any:
        """The object that was sent, of the type `kind`; see Message. Raises InvalidMessage."""
        return self.message.decode(kind)

    def _repr_html_(self) -> str:
        return self.message._repr_html_()

    @property
    def queue_id(self) -> int:
        """The queue that it was read from."""
        return self.message.queue_id

    @property
    def queue_offset(self) -> int:
        """Its number in that queue."""
        return self.message.queue_offset

    @property
    def tags(self) -> str | None:
        """The tag that consumers choose by."""
        return self.message.tags

    @property
    def keys(self) -> str | None:
        """The keys, separated by blanks."""
        return self.message.keys

    @property
    def shard(self) -> str | None:
        """The sharding key: messages that share it are in one queue, in order."""
        return self.message.shard

    @property
    def unique_key(self) -> str | None:
        """The producer's id of the message; a retry has the same."""
        return self.message.unique_key

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties."""
        return self.message.properties

    def __getattr__(self, name: str) -> Any:
        # the rarer fields
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.message, name)

    def __repr__(self) -> str:
        return f"Group{self.message!r}"


class Batch(Sequence[GroupMessage]):
    """Consecutive messages of one queue. Each GroupMessage is made only when it is looked at.

    A handler of batches that returns has handled all except those that it has given back.
    """

    __slots__ = ("handful", "_judge")

    def __init__(self, handful: Handful, judge: Judge) -> None:
        self.handful, self._judge = handful, judge

    @property
    def records(self) -> list[Message]:
        """The messages as a plain consumer has them, which cannot be acknowledged one by one."""
        return self.handful.messages

    def ack(self) -> None:
        """All of them are handled."""
        self._judge.tell(self.handful, -1, None)

    def __len__(self) -> int:
        return len(self.handful)

    def __iter__(self) -> Iterator[GroupMessage]:
        handful, judge = self.handful, self._judge
        for place, message in enumerate(handful.messages, handful.start):
            yield GroupMessage(message, handful, place, judge)

    @overload
    def __getitem__(self, at: int) -> GroupMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[GroupMessage]: ...
    def __getitem__(self, at: int | slice) -> GroupMessage | list[GroupMessage]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        place = range(self.handful.start, self.handful.stop)[at]
        return GroupMessage(self.handful.lot.messages[place], self.handful, place, self._judge)

    def __repr__(self) -> str:
        queue = self.handful.queue
        return f"<Batch of {len(self)} from {queue.topic}/{queue.queue_id}>"

    def _repr_html_(self) -> str:
        queue, size = self.handful.queue, len(self)
        place = [("topic", queue.topic), ("queue", queue.queue_id), ("messages", size)]
        return as_table("Batch", [*place, ("first offset", self[0].queue_offset if size else None)])
