"""The options of a send, and the send itself, for all clients that send.

Most messages have nothing but tags, keys, a shard or a queue. Those are arguments of `send`, and
`Intake.take` makes such a message at once. All other options are rare and cost nothing when left
out: they come as a mapping, which exists only if one of them was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from penstock.client.core.delays import RECALL_BODY, Moment, Seconds, recall_of, wanted_delay
from penstock.client.core.sending.encoding import BatchMessage, Body, Keys
from penstock.client.core.sending.frames import DelayedFuture, Receipt, SendFuture
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.selectors import SelectedBy, Selector, queue_choice


class SendOptions(TypedDict, total=False):
    """What `send` takes besides its arguments. None means the same as leaving an option out."""

    selector: Selector | None
    properties: Mapping[str, str] | None
    flag: int
    wait: bool
    delay: Seconds
    deliver_at: Moment
    delay_level: int | None


class ReplyFields(TypedDict, total=False):
    """What every message may have besides its body, wherever it is sent to."""

    tags: str | None
    keys: Keys
    properties: Mapping[str, str] | None


class MessageFields(ReplyFields, total=False):
    """What a message has besides topic and body."""

    shard: str | None
    queue: int | None
    selector: Selector | None
    flag: int


def whole_message(
    body: Body,
    *,
    tags: str | None = None,
    keys: Keys = None,
    shard: str | None = None,
    queue: int | None = None,
    selector: Selector | None = None,
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
) -> tuple[BatchMessage, str | None, int | SelectedBy | None]:
    """A message, its sharding key, and what else chooses its queue. Raises InvalidMessage, and
    TypeError for an unknown field."""
    message = BatchMessage(body, tags, keys, properties, flag)
    return message, shard, queue_choice(selector, shard, queue)


def send(
    core: ProducerCore,
    now_ms: int,
    topic: str,
    body: Body,
    tags: str | None = None,
    keys: Keys = None,
    shard: str | None = None,
    queue: int | None = None,
    ack: str = "",
    *,
    selector: Selector | None = None,
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
    wait: bool = True,
    delay: Seconds = None,
    deliver_at: Moment = None,
    delay_level: int | None = None,
) -> SendFuture:
    """Take any message. Raises what `Producer.send` does, and TypeError for an unknown option."""
    later, own = wanted_delay(delay, deliver_at, delay_level, properties, now_ms)
    message = BatchMessage(body, tags, keys, own, flag)
    chosen = queue_choice(selector, shard, queue)
    return core.send(topic, message, shard, chosen, ack, wait, now_ms, later)


def recall(core: ProducerCore, now_ms: int, handle: str | Receipt, ack: str) -> DelayedFuture:
    """Send the record that recalls a delayed message. Raises InvalidArgument."""
    topic, later = recall_of(handle, now_ms)
    # its key is that of the message that it recalls, so that a query finds both
    message = BatchMessage(RECALL_BODY, keys=later.recalls)
    future = core.send(topic, message, None, 0, ack, True, now_ms, later)
    assert isinstance(future, DelayedFuture)
    return future
