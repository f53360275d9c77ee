"""Gives a topic another number of queues while it is in use, one safe step after the other.

It may be interrupted anywhere. Asked for the same number again, it goes on where it was; asked for
the old number, it undoes what was done. shared/messaging/topic_scaling.py has the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.client.groups.admin import GroupAdmin
from penstock.client.sending.producer import Producer
from penstock.shared.errors import BrokerTimeout, StoreUnavailable
from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.messaging.topic_scaling import Step, next_step
from penstock.shared.wire.group_messages import GroupInfo
from penstock.shared.wire.messages import TopicDescribed

LOOK_S = 0.2
# A producer asks for its routes every 30 s, and messages sent by the old route are still in flight.
SETTLE_S = 35.0


class Undrained(NamedTuple):
    """A queue that a group has not read to its end."""

    group: str
    queue_id: int
    offset: int  # -1: unknown
    end: int

    def __str__(self) -> str:
        at = "has no offset" if self.offset < 0 else f"is at {self.offset}"
        return f"group {self.group} {at} in queue {self.queue_id}, which ends at {self.end}"


class TopicScaling:
    """One topic on its way to `wanted` queues. `report` gets a line for each thing that happens."""

    def __init__(
        self,
        producer: Producer,
        admin: GroupAdmin,
        topic: str,
        wanted: int,
        *,
        settle_s: float = SETTLE_S,
        timeout_s: float | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`settle_s` is how long clients may take to learn of a change, and `timeout_s` how long
        groups may take to read what is there (None: for ever)."""
        self._producer, self._admin = producer, admin
        self._topic, self._wanted = topic, wanted
        self._settle_s, self._timeout_s = settle_s, timeout_s
        self._report = report

    def run(self) -> TopicDescribed:
        """Do all steps. Raises the broker's refusals, BrokerTimeout if groups take too long, and
        StoreUnavailable if nobody can know whether all was read."""
        while True:
            now = self._producer.describe_topic(self._topic)
            step = next_step(_config(now), self._wanted)
            if step is None:
                return now
            if step is Step.READ_MORE:
                self._read()
            elif step is Step.WRITE_MORE:
                self._await_owners(range(now.write_queues, self._wanted))
                self._write()
            elif step is Step.WRITE_FEWER:
                self._write()
            else:
                self._take_away(range(self._wanted, now.read_queues))

    def _read(self, ends: dict[int, int] | None = None) -> None:
        self._producer.update_topic(self._topic, read_queues=self._wanted, ends=ends)
        self._report(f"read queues: {self._wanted}")

    def _write(self) -> None:
        self._producer.update_topic(self._topic, write_queues=self._wanted)
        self._report(f"write queues: {self._wanted}")

    def _infos(self) -> list[GroupInfo]:
        """The groups that read this topic, or have read it."""
        infos = map(self._admin.describe, sorted(self._admin.list()))
        return [info for info in infos if any(q.topic == self._topic for q in info.queues)]

    # --- more queues ---

    def _await_owners(self, new: range) -> None:
        """Wait until members of every group own the new queues, but no longer than `settle_s`."""
        until = time.monotonic() + self._settle_s
        self._report(f"waiting until members of groups have queues {new.start} to {new.stop - 1}")
        while missing := [
            info.group for info in self._infos() if not _owns(info, self._topic, new)
        ]:
            if time.monotonic() > until:
                self._report(f"they have not: {', '.join(missing)}; a message waits there for them")
                return
            time.sleep(LOOK_S)

    # --- fewer queues ---

    def _take_away(self, going: range) -> None:
        """Stop reading queues once producers know of it and every group has reached their ends.

        The broker removes them only if they have got no message since their ends were looked up.
        """
        self._report(f"waiting {self._settle_s:g} s until producers know")
        time.sleep(self._settle_s)
        began = time.monotonic()
        self._report(f"waiting until groups have read queues {going.start} to {going.stop - 1}")
        for info in filter(_broadcasts, self._infos()):
            self._report(
                f"group {info.group} broadcasts, and is not waited for: its members keep their own "
                "places, so see that they have read these queues"
            )
        while True:
            ends = self._ends(going)
            left = self._undrained(ends)
            if not left:
                try:
                    return self._read(ends)
                except StoreUnavailable as error:
                    self._report(str(error))
            elif self._timeout_s is not None and time.monotonic() - began > self._timeout_s:
                raise BrokerTimeout(
                    f"what is in the queues was not read within {self._timeout_s:g} s",
                    str(left[0]),
                    "the topic is still read whole, and nothing is lost; run the same command "
                    "again when the group has read on",
                )
            time.sleep(LOOK_S)

    def _ends(self, queues: range) -> dict[int, int]:
        found = self._admin.queues(self._topic).queues
        return {queue.queue_id: queue.max_offset for queue in found if queue.queue_id in queues}

    def _undrained(self, ends: dict[int, int]) -> list[Undrained]:
        """Queues that some group has not read to the end. Raises StoreUnavailable if no group's
        offsets can tell."""
        readers = self._infos()
        infos = [info for info in readers if not _broadcasts(info)]
        if not infos and any(ends.values()):
            who = "only broadcasting groups read" if readers else "no group reads"
            raise StoreUnavailable(
                f"{who} the topic, so nobody knows whether its messages were read",
                f"queues {sorted(queue for queue, end in ends.items() if end)} have had some",
                "read them, then set it by hand: penstock topics update "
                f"{self._topic} --read-queues {self._wanted}",
            )
        left = []
        for info in infos:
            at = {q.queue_id: q.offset for q in info.queues if q.topic == self._topic}
            left += [
                Undrained(info.group, queue, at.get(queue, -1), end)
                for queue, end in sorted(ends.items())
                if at.get(queue, -1) < end and end
            ]
        return left


def _config(now: TopicDescribed) -> TopicConfig:
    return TopicConfig(now.read_queues, now.write_queues)


def _broadcasts(info: GroupInfo) -> bool:
    """Whether each member gets all messages and keeps its offsets itself."""
    return any(member.model == "broadcasting" for member in info.members)


def _owns(info: GroupInfo, topic: str, queues: range) -> bool:
    """Whether a group has an owner for each of these queues, or no member that could own one."""
    if _broadcasts(info):
        return True
    subscribed = any(
        each.topic == topic for member in info.members for each in member.subscriptions
    )
    owned = {q.queue_id for q in info.queues if q.topic == topic and q.owner}
    return not subscribed or owned >= set(queues)
