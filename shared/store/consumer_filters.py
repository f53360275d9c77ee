"""config/consumerFilter.json: the SQL92 filters of consumer groups, in RocketMQ's form.

    {"filterDataByTopic": {topic: {"topic", "groupFilterData": {group: {
        "consumerGroup", "topic", "expression", "expressionType", "clientVersion",
        "bornTime", "deadTime", "dead", "bloomFilterData": {"bitNum", "bitPos"}}}}}}

Subscriptions by tags are not written down. A filter whose consumers have gone is dead, and dropped
a day later; after a start all are, until they show up. Of two filters of one group, that of the
later version counts. The reader owns the file; entries it does not know better are kept as they
were. No clock: every call passes the time, in ms since 1970, and where it measures how long
something took a monotonic one, which does not jump.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from penstock.shared.clock import Clock
from penstock.shared.errors import StoreDamaged
from penstock.shared.filters.bloom_filter import BITS, bit_positions
from penstock.shared.store.rocketmq_json import encode_document, load_document, save_document

# RocketMQ's times: of a connection without a sign of life, of a start, and of the dead.
SILENT_MS = 120_000
DEAD_BEFORE_START_MS = 30_000
KEEP_DEAD_MS = 24 * 3600 * 1000
# What is written down at most; a filter that finds no room is obeyed, and not written down.
# Characters are counted, which is exact for ASCII: it is a bound on memory, and no format.
MAX_FILTERS, MAX_EXPRESSION_BYTES = 2000, 1 << 20
# While all are alive, nobody looks for dead ones for this long. Each look goes through all
# filters, and a client can cause one with every pull.
LOOK_AGAIN_MS = 1000

# RocketMQ's period. A crash loses what came since; its consumers register again.
SAVE_EVERY_MS = 10_000

Entry = dict[str, Any]
_log = logging.getLogger(__name__)


class ConsumerFilters:
    """The filters of a store, in memory. `changed` says that the file is older.

    It keeps the document that it was made of, and changes it in place. For one thread.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document
        self._topics = document.setdefault("filterDataByTopic", {})
        # (topic, group) -> monotonic ms of its last sign of life in this process
        self._seen_ms: dict[tuple[str, str], int] = {}
        self._count = self._bytes = 0
        # 0: after a restart all are dead, and make room at once
        self._full_until_ms = 0
        self.changed = False
        if not isinstance(self._topics, dict):
            raise ValueError("filterDataByTopic is not an object")
        for each in self._topics.values():
            # all of it is checked now, so that no later call meets another form
            groups = each.get("groupFilterData") if isinstance(each, dict) else None
            if not isinstance(groups, dict) or not all(map(_is_entry, groups.values())):
                raise ValueError("groupFilterData is not an object of filters")
            self._count += len(groups)
            self._bytes += sum(len(entry["expression"]) for entry in groups.values())

    def all(self) -> list[Entry]:
        """Every filter, dead ones too, by topic and group. The entries themselves, not copies."""
        return [
            entry
            for topic in sorted(self._topics)
            for _, entry in sorted(self._topics[topic]["groupFilterData"].items())
        ]

    def began(self, now_ms: int) -> None:
        """The broker starts: nobody has shown up yet. To be called once, before `register`.

        RocketMQ dates these deaths back by 30 s.
        """
        for entry in self.all():
            if entry["deadTime"] == 0:
                self._bury(entry, now_ms - DEAD_BEFORE_START_MS)

    def register(
        self,
        topic: str,
        group: str,
        expression: str,
        version: int,
        now_ms: int,
        monotonic_ms: int,
    ) -> None:
        """A consumer of a group shows up with its SQL92 filter.

        Called for each pull that carries one, so the usual case changes nothing. `version` is the
        client's, `now_ms` is wall time.
        """
        # a detached {} where there is no such topic: asking must not make one
        groups = self._topics.get(topic, {}).get("groupFilterData", {})
        old = groups.get(group)
        # an older version is a sign of life, too
        if old is not None:
            self._seen_ms[topic, group] = monotonic_ms
        if old is not None and version <= old["clientVersion"]:
            # a consumer that still has an older filter does not bring this one back
            if version == old["clientVersion"] and old["deadTime"]:
                self._revive(old, version)
            return
        # RocketMQ ignores the whole file for one entry whose bits are of another size. So an entry
        # with other bits is made again, and one that differs in nothing keeps its `bornTime`.
        bits = {"bitNum": BITS, "bitPos": bit_positions(group, topic)}
        kept = (old["expression"], old["expressionType"], old.get("bloomFilterData")) if old else ()
        if old is not None and kept == (expression, "SQL92", bits):
            self._revive(old, version)
        else:
            # what replaces a filter needs room for the difference only, and may free some
            grown = len(expression) - (len(old["expression"]) if old else 0)
            if not self._make_room(grown, old, monotonic_ms):
                return
            self._count += old is None
            self._bytes += grown
            self._seen_ms[topic, group] = monotonic_ms
            # looked up again: making room may have dropped the topic with its last group
            made = self._topics.setdefault(topic, {"groupFilterData": {}, "topic": topic})
            made["groupFilterData"][group] = {
                "bloomFilterData": bits,
                "bornTime": now_ms,
                "clientVersion": version,
                "consumerGroup": group,
                "dead": False,
                "deadTime": 0,
                "expression": expression,
                "expressionType": "SQL92",
                "topic": topic,
            }
            self.changed = True

    def clean(self, now_ms: int, monotonic_ms: int) -> None:
        """Bury those that have been silent, and drop those that have been dead for a day.

        Silence is measured by the monotonic clock. How long somebody has been dead is wall time: it
        goes on over a restart, and the file has it so. A clock that jumps ahead drops the dead
        early, and nobody who is alive.
        """
        # copies of both, because `_drop` takes groups and topics away
        for topic in list(self._topics):
            groups = self._topics[topic]["groupFilterData"]
            for group, entry in list(groups.items()):
                # nobody has shown up since the start, so it is dead already
                seen_ms = self._seen_ms.get((topic, group), monotonic_ms)
                if entry["deadTime"] == 0 and monotonic_ms - seen_ms >= SILENT_MS:
                    self._bury(entry, now_ms)
                if entry["deadTime"] and now_ms - entry["deadTime"] >= KEEP_DEAD_MS:
                    self._drop(topic, group)

    def encode(self) -> bytes:
        """The file's content, with what entries had and this class does not know."""
        return encode_document(self._document)

    def _make_room(self, size: int, beside: Entry | None, monotonic_ms: int) -> bool:
        """Have room for another filter of this size. The one that has been dead for longest goes
        first.

        `beside` is the filter that is being replaced: it is counted already, and must not go.
        """

        def has_room() -> bool:
            is_one_more = beside is None
            return (
                self._count + is_one_more <= MAX_FILTERS
                and self._bytes + size <= MAX_EXPRESSION_BYTES
            )

        if has_room() or monotonic_ms < self._full_until_ms:
            return has_room()
        self._full_until_ms = monotonic_ms + LOOK_AGAIN_MS
        dead = [
            (entry["deadTime"], topic, group)
            for topic, each in self._topics.items()
            for group, entry in each["groupFilterData"].items()
            if entry["deadTime"] and entry is not beside
        ]
        # some at once: to look for them is to look at all
        for number, (_, topic, group) in enumerate(sorted(dead)):
            if number >= len(dead) // 8 and has_room():
                break
            self._drop(topic, group)
        return has_room()

    def _drop(self, topic: str, group: str) -> None:
        """Forget a filter, and with the last one its topic: else the file would grow by topics."""
        groups = self._topics[topic]["groupFilterData"]
        self._count -= 1
        self._bytes -= len(groups.pop(group)["expression"])
        self._seen_ms.pop((topic, group), None)
        self.changed = True
        if not groups:
            del self._topics[topic]

    def _revive(self, entry: Entry, version: int) -> None:
        entry.update(clientVersion=version, deadTime=0, dead=False)
        self.changed = True

    def _bury(self, entry: Entry, at_ms: int) -> None:
        # RocketMQ calls dead what died no earlier than it was born
        entry.update(deadTime=max(at_ms, entry["bornTime"]), dead=True)
        self.changed = True


def _is_entry(entry: Any) -> bool:
    """Whether it is a filter; numbers that it lacks become 0."""
    numbers, texts = ("clientVersion", "bornTime", "deadTime"), ("expression", "expressionType")
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.setdefault(name, 0), int) for name in numbers)
        and all(isinstance(entry.get(name), str) for name in texts)
    )


def load_consumer_filters(file: Path) -> ConsumerFilters:
    """The filters of a store, as they were saved last; a running broker's may be newer. Raises
    StoreDamaged: see load_document. OSError.
    """
    return load_document(file, ConsumerFilters)


class ConsumerFilterFile:
    """The file of a running broker, which its one owner saves now and then.

    What is served does not depend on the file. So a broken one and a disk that refuses are lines in
    the log, and no reason to stop.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        """Raises OSError for a file that is there and cannot be read."""
        self._file = file
        self._clock = clock
        self._saved_ms = clock.monotonic_ms()
        try:
            self.filters = load_consumer_filters(file)
        except StoreDamaged as error:
            # consumers that show up register again; nothing else depends on it
            _log.warning("starting without the written-down filters: %s", error)
            self.filters = ConsumerFilters({})
        self.filters.began(clock.now_ms())

    def register(self, topic: str, group: str, expression: str, version: int) -> None:
        """A consumer of a group shows up with its SQL92 filter. In memory: `save` writes it."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self.filters.register(topic, group, expression, version, now_ms, monotonic_ms)

    def save(self, *, at_once: bool = False) -> None:
        """Save changes, at most every SAVE_EVERY_MS. A disk that refuses is asked again.

        `at_once` is for a stop, which has no later time.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if not at_once and monotonic_ms - self._saved_ms < SAVE_EVERY_MS:
            return
        # before the attempt: a disk that refuses is asked again after SAVE_EVERY_MS, not each cycle
        self._saved_ms = monotonic_ms
        self.filters.clean(self._clock.now_ms(), monotonic_ms)
        if self.filters.changed:
            try:
                save_document(self._file, self.filters.encode())
            except OSError as error:
                _log.warning("cannot save %s, trying again later: %s", self._file, error)
            else:
                self.filters.changed = False
