"""Asks about consumer groups, and changes them, for operators: ordinary, synchronous code.

Not thread-safe, and not to be used across a fork.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.connecting.asker import Asker
from penstock.client.connecting.broker_address import Store
from penstock.client.connecting.where import Where
from penstock.client.core.start import StartAt, check_given
from penstock.shared.errors import QueueNotFound
from penstock.shared.names import check_group, check_topic
from penstock.shared.next_steps import no_such_topic
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import (
    Describe,
    Described,
    QueueRange,
    decode_consume_answer,
)


class GroupAdmin:
    """Asks a broker about its groups.

        with GroupAdmin(store="./store") as groups:
            for name, (members, lag) in groups.list().items():
                print(name, members, lag)

    `timeout_ms` is how long the broker may be silent before BrokerTimeout is raised.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: Store | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """`endpoint` is any endpoint of the broker. Raises ConnectError."""
        self._where, self._timeout_ms = Where(None, endpoint, store), timeout_ms
        self._asker = Asker(
            "members",
            words.decode_group_answer,
            **self._where.arguments("members"),
            timeout_ms=timeout_ms,
        )

    def __enter__(self) -> GroupAdmin:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def list(self) -> dict[str, tuple[int, int]]:
        """Group -> (members, lag in messages or -1 if unknown)."""
        return self._asker.ask(words.ListGroups, words.GroupList).groups

    def describe(self, group: str, *, spans: bool = False) -> words.GroupInfo:
        """All that is known of a group; `exists` is false if there is no group of this name. With
        `spans` also which members had its queues before."""
        check_group(group)
        return self._asker.ask(
            lambda number, run: words.DescribeGroup(number, group, run, spans), words.GroupInfo
        )

    def reset(
        self, group: str, topic: str, offsets: Mapping[int, int], *, dry_run: bool = False
    ) -> dict[int, tuple[int, int]]:
        """Set a group's offsets; queue -> (offset before, or -1; offset after).

        Members go on from there at once. With `dry_run` nothing changes. Raises GroupNotFound,
        QueueNotFound, and InvalidArgument for an offset past a queue's end.
        """
        check_group(group)
        wanted = check_given(offsets)
        return self._asker.ask(
            lambda number, run: words.ResetOffsets(number, group, topic, wanted, dry_run, run),
            words.OffsetsReset,
        ).offsets

    def set(self, group: str, settings: Mapping[str, bool | int]) -> dict[str, bool | int]:
        """Create a group, or change its settings, which are those of subscriptionGroup.json.
        Returns all settings as they are now. Raises InvalidArgument."""
        check_group(group)
        wanted = dict(settings)
        return self._asker.ask(
            lambda number, run: words.SetGroup(number, group, wanted, run), words.GroupSet
        ).settings

    def delete(self, group: str) -> None:
        """Forget a group and its offsets. Raises GroupNotFound, and InvalidArgument while it has
        members."""
        check_group(group)
        self._asker.ask(lambda number, run: words.DeleteGroup(number, group, run), words.GroupSet)

    def targets(self, topic: str, to: StartAt, queues: frozenset[int] | None) -> dict[int, int]:
        """The offset that `to` means in each of these queues; None: in all queues. Raises
        TopicNotFound, QueueNotFound."""
        described = self.queues(check_topic(topic), to.at_ms)
        if not described.exists:
            raise no_such_topic(topic, described.hint)
        found = {queue.queue_id: _target(queue, to) for queue in described.queues}
        for queue_id in queues or ():
            if queue_id not in found:
                raise QueueNotFound(f"topic {topic} has {len(found)} queues", queue_id)
        return {queue: at for queue, at in found.items() if queues is None or queue in queues}

    def queues(self, topic: str, at_ms: int = -1) -> Described:
        """What the queues of a topic hold, and where each was at `at_ms`."""
        there = self._where.arguments("consumers")
        asker = Asker("consumers", decode_consume_answer, **there, timeout_ms=self._timeout_ms)
        try:
            return asker.ask(lambda number, run: Describe(number, topic, at_ms, run), Described)
        finally:
            asker.close()

    def close(self) -> None:
        """Disconnect."""
        self._asker.close()


def _target(queue: QueueRange, to: StartAt) -> int:
    if to.latest:
        return queue.max_offset
    if to.at_ms >= 0:
        return queue.at_offset
    # a group cannot go on at an offset that has expired or does not exist yet
    return min(max(to.offset, queue.min_offset), queue.max_offset)
