"""What is asked about topics at the produce endpoint: list, create, describe, update, delete.

A producer's own question, Route, is in messages.py with the rest of that endpoint. Import all of
these through messages.py.
"""

from __future__ import annotations

from typing import Literal

from penstock.shared.wire.header import Number, WireMessage

FilterType = Literal["SINGLE_TAG", "MULTI_TAG"]


class CreateTopic(WireMessage, frozen=True):
    """Make a topic, or give it more queues. It loses none: a smaller number is refused."""

    request: Number
    topic: str
    queues: int
    run: str = ""


class ListTopics(WireMessage, frozen=True):
    request: Number
    run: str = ""


class UpdateTopic(WireMessage, frozen=True):
    """Change a topic's settings; None leaves one. `attributes` are "+key": value, or "-key": "".

    With `ends`, the topic gets fewer queues to read or write only if those that go end there: so no
    queue goes that has got a message since somebody looked. With `dry_run` nothing changes, and the
    answer says what would.
    """

    request: Number
    topic: str
    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: dict[str, str] = {}
    ends: dict[int, int] | None = None
    dry_run: bool = False
    run: str = ""
    filter_type: FilterType | None = None
    sys_flag: int | None = None


class DeleteTopic(WireMessage, frozen=True):
    """Delete a topic with its queues. Its records stay in the log until they expire."""

    request: Number
    topic: str
    dry_run: bool = False
    run: str = ""


class DescribeTopic(WireMessage, frozen=True):
    """A topic's settings. Ask the consume endpoint what its queues hold."""

    request: Number
    topic: str
    run: str = ""


class TopicList(WireMessage, frozen=True):
    """Each topic with its number of queues to write. `others` has read queues and permission of the
    topics in which the former differs, or the latter is not 6."""

    request: int
    topics: dict[str, int]
    others: dict[str, tuple[int, int]] = {}


class TopicDescribed(WireMessage, frozen=True):
    """A topic's settings after the change that was asked for: RocketMQ's TopicConfig.

    `deleted` says that the request has deleted it.
    """

    request: int
    topic: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    attributes: dict[str, str]
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    deleted: bool = False
