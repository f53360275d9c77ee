"""Every error a caller can meet, split by what the caller can do about it.

Each carries data, not only text: `status` is RocketMQ's name for the condition, `what` says what
happened, `value` what it happened with, or its cause, and `hint` is the next step, a command if
there is one. `what` states a fact and never a rule: "there is no such topic", not "the topic
exists". Users import the classes from `penstock.errors`.

A class exists where a caller can react differently, and not for each place that raises. `exit_code`
is what a command ends with: 2 for a mistake of the user, 3 if no broker answers, 5 for a damaged
store, 1 otherwise.
"""

from __future__ import annotations

import errno
from typing import Any

# This process lacks memory or descriptors. That says nothing about the file that was accessed, so
# it must not be reported as damaged: the actor exits, and its replacement has free resources.
RESOURCE_EXHAUSTED = frozenset((errno.ENOMEM, errno.EMFILE, errno.ENFILE))

# RocketMQ has two names for a busy broker; this is the one for an append that takes too long.
PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
# The two statuses of a message that was stored.
PUT_OK = "PUT_OK"
FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"


class PenstockError(Exception):
    """Base of all errors of this project."""

    status = "UNKNOWN_ERROR"
    exit_code = 1

    def __init__(self, what: str, value: object = None, hint: str = "", status: str = "") -> None:
        self.what = what
        self.value = value
        self.hint = hint
        if status:
            self.status = status
        shown = "" if value is None else f": {value}"
        super().__init__(
            f"[{self.status}] {what}{shown}" + (f". {_sentence(hint)}" if hint else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the default would pass the finished text as `what`."""
        return type(self), (self.what, self.value, self.hint, self.status), self.__dict__


class ConfigError(PenstockError):
    """A configuration key or flag is wrong: correct it and start again."""

    status = "CONFIG_ERROR"
    exit_code = 2


class InvalidArgument(PenstockError, ValueError):
    """An argument of a call, or an option of a command, cannot be used: correct it."""

    status = "INVALID_ARGUMENT"
    exit_code = 2


class PortTaken(ConfigError):
    """Another process listens at an address that the broker needs."""

    status = "PORT_IN_USE"


class MissingDependency(PenstockError):
    """A program or package that this command needs is not installed: the hint names it."""

    status = "MISSING_DEPENDENCY"
    exit_code = 2


class InvalidMessage(PenstockError):
    """The message breaks a rule of the format; sending it again cannot help."""

    status = "MESSAGE_ILLEGAL"
    exit_code = 2


class FilterError(PenstockError):
    """A consumer's filter, tags or SQL92, cannot be understood, or is not allowed here."""

    status = "SUBSCRIPTION_PARSE_FAILED"
    exit_code = 2


class PropertiesTooLarge(InvalidMessage):
    """The encoded properties are too long for their signed 16-bit length."""

    status = "PROPERTIES_SIZE_EXCEEDED"


class TopicNotFound(PenstockError):
    """The topic does not exist and may not be created on first use."""

    status = "TOPIC_NOT_EXIST"


class QueueNotFound(PenstockError):
    """The topic has no such queue."""

    status = "QUEUE_NOT_EXIST"


class GroupNotFound(PenstockError):
    """There is no consumer group of this name, and it may not be made on first use."""

    status = "SUBSCRIPTION_GROUP_NOT_EXIST"


class UnknownMember(PenstockError):
    """The group does not have this member, or no longer: join again."""

    status = "UNKNOWN_MEMBER"


class TransactionEnded(PenstockError):
    """The transaction has ended already, with another outcome than was asked for."""

    status = "TRANSACTION_ENDED"


class NoPermission(PenstockError):
    """The group's or the topic's settings forbid it."""

    status = "NO_PERMISSION"


class MessageNotFound(PenstockError):
    """No message has this id: it has expired, or is another store's."""

    status = "QUERY_NOT_FOUND"


class StoreUnavailable(PenstockError):
    """The store does not take messages now: it is read-only, stopping or has failed."""

    status = "SERVICE_NOT_AVAILABLE"


class SegmentUnavailable(StoreUnavailable):
    """The next commit log segment could not be made, usually because the disk is full."""

    status = "CREATE_MAPPED_FILE_FAILED"


class BrokerBusy(PenstockError):
    """The broker takes no message at the moment; the same message may be sent again later.

    `status` is SYSTEM_BUSY, or OS_PAGE_CACHE_BUSY if an append takes too long. Trying again makes
    no sense before `retry_after_ms`.
    """

    status = "SYSTEM_BUSY"

    def __init__(
        self,
        what: str,
        value: object = None,
        hint: str = "",
        status: str = "",
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(what, value, hint, status)
        self.retry_after_ms = retry_after_ms


class RingUnavailable(PenstockError):
    """There is no such ring in shared memory, or none for this producer: frames go by socket."""

    status = "RING_UNAVAILABLE"


class FlushTimeout(PenstockError, TimeoutError):
    """The message is stored, but was not known to be on disk within sync_flush_timeout_ms.

    `receipt` says where. Do not send it again: that would be a second message.
    """

    status = FLUSH_DISK_TIMEOUT
    receipt: object = None


class OffsetOutOfRange(PenstockError):
    """A consumer asked for an offset that the queue does not have."""

    status = "PULL_OFFSET_MOVED"


class OffsetsMoved(PenstockError):
    """The offsets of a group are not where a frame of exactly_once() begins: others have processed
    its inputs, or an operator has set them. Nothing of the frame is stored.

    `value` is the present value of each queue that has another one, as JSON; `offsets` the same as
    topic -> queue -> offset, -1 if there is none. Queues that do not fit into a line are left out.
    """

    status = "OFFSETS_MOVED"

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        import json  # here, as few programs ever have this error

        found = json.loads(str(self.value))
        return {
            topic: {int(queue): int(offset) for queue, offset in queues.items()}
            for topic, queues in found.items()
        }


class UnreadableBody(PenstockError):
    """One message's body has changed or cannot be decompressed; everything else can be read."""

    status = "BODY_UNREADABLE"


class ProtocolError(PenstockError):
    """A frame on a socket is not one of Penstock's, or is too large."""

    status = "MESSAGE_ILLEGAL"


class ConnectError(PenstockError):
    """There is no broker at the endpoint or on the store, or it cannot be talked to."""

    status = "CONNECT_FAILED"
    exit_code = 3


class NotRunning(ConnectError):
    """No broker runs on the store, or it cannot be seen from here; one may come."""


class BrokerTimeout(ConnectError, TimeoutError):
    """A broker was there but did not answer in the time it was given."""

    status = "BROKER_TIMEOUT"


class WrongStore(ConnectError):
    """The broker at the endpoint runs on another store than was named."""

    status = "STORE_MISMATCH"


class StoreLocked(PenstockError):
    """Another process holds the store's lock."""

    status = "STORE_LOCKED"


class StoreDamaged(PenstockError):
    """Bytes on disk break the format, and nothing harmless explains it."""

    status = "STORE_DAMAGED"
    exit_code = 5
    # If a consumer found it among a queue's records: the damage is in one message, at this offset
    # or later, and the messages after it may be sound.
    queue_offset: int | None = None


class QueueUnreadable(StoreDamaged):
    """One queue cannot be read where its consumer stands. The consumer stays there and tries again
    after a while; a program that asks for messages again gets those of the other queues."""

    status = "QUEUE_UNREADABLE"


def _sentence(hint: str) -> str:
    """The hint with a capital, unless it begins with a name, or a command to be copied."""
    first = hint.partition(" ")[0]
    return (
        hint
        if first in _COMMANDS or not first.rstrip(":,").isalpha()
        else hint[0].upper() + hint[1:]
    )


# beginnings of a hint that must be typed as they are: commands, and an argument's name
_COMMANDS = frozenset(("penstock", "pip", "apt", "mv", "rm", "ls", "kill", "ack"))

# The classes of the statuses that come over a socket.
BY_STATUS: dict[str, type[PenstockError]] = {
    kind.status: kind
    for kind in (
        InvalidArgument,
        InvalidMessage,
        FilterError,
        PropertiesTooLarge,
        TopicNotFound,
        QueueNotFound,
        GroupNotFound,
        UnknownMember,
        TransactionEnded,
        NoPermission,
        MessageNotFound,
        StoreUnavailable,
        SegmentUnavailable,
        BrokerBusy,
        RingUnavailable,
        OffsetOutOfRange,
        OffsetsMoved,
        ConnectError,
        WrongStore,
        StoreDamaged,
    )
}
BY_STATUS[PAGE_CACHE_BUSY] = BrokerBusy


def error_from_status(
    status: str, what: str, value: object, hint: str, retry_after_ms: int = 0
) -> PenstockError:
    """The typed error for a status from a socket; an unknown status keeps its name."""
    kind = BY_STATUS.get(status, PenstockError)
    error = kind(what, value, hint, status=status)
    if isinstance(error, BrokerBusy):
        error.retry_after_ms = retry_after_ms
    return error
