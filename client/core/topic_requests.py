"""What a program asks about topics, as requests: arguments are checked before anything is sent.

Pure functions. The number of a request is given to it when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from penstock.client.core.arguments import check_bool, check_text, check_whole
from penstock.shared.names import check_topic
from penstock.shared.wire.messages import CreateTopic, DeleteTopic, DescribeTopic, UpdateTopic


def _topic(topic: str) -> str:
    return check_topic(check_text("topic", topic))


def create_request(topic: str, queues: int) -> CreateTopic:
    """Asks for a topic, or for more queues of it. Raises InvalidArgument."""
    return CreateTopic(0, _topic(topic), check_whole("queues", queues))


class TopicChanges(TypedDict, total=False):
    """What `update_topic` may be told, in both producers."""

    read_queues: int | None
    write_queues: int | None
    perm: int | None
    order: bool | None
    attributes: Mapping[str, str] | None
    ends: Mapping[int, int] | None
    dry_run: bool


def update_request(
    topic: str,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    perm: int | None = None,
    order: bool | None = None,
    attributes: Mapping[str, str] | None = None,
    ends: Mapping[int, int] | None = None,
    dry_run: bool = False,
) -> UpdateTopic:
    """Asks for changes of a topic. Raises InvalidArgument, and TypeError for an unknown change."""
    numbers = {"read_queues": read_queues, "write_queues": write_queues, "perm": perm}
    for name, number in numbers.items():
        if number is not None:
            check_whole(name, number)
    if order is not None:
        check_bool("order", order)
    changes = {
        check_text("a key of attributes", key): check_text("a value of attributes", value)
        for key, value in (attributes or {}).items()
    }
    return UpdateTopic(
        0,
        _topic(topic),
        read_queues,
        write_queues,
        perm,
        order,
        changes,
        None if ends is None else {check_whole("a queue", q): e for q, e in ends.items()},
        check_bool("dry_run", dry_run),
    )


def delete_request(topic: str, dry_run: bool) -> DeleteTopic:
    """Asks for the end of a topic. Raises InvalidArgument."""
    return DeleteTopic(0, _topic(topic), check_bool("dry_run", dry_run))


def describe_request(topic: str) -> DescribeTopic:
    """Asks what is set of a topic. Raises InvalidArgument."""
    return DescribeTopic(0, _topic(topic))
