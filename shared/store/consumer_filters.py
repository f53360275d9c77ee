"""config/consumerFilter.json: the SQL92 filters of consumer groups, in RocketMQ's form.

    {"filterDataByTopic": {topic: {"topic", "groupFilterData": {group: {
        "consumerGroup", "topic", "expression", "expressionType", "clientVersion",
        "bornTime", "deadTime", "dead", "bloomFilterData": {"bitNum", "bitPos"}}}}}}

Subscriptions by tags are not saved. A filter whose consumers have gone is dead, and is dropped a
day later; after a start all filters are dead until their consumers show up. Of two filters of one
group, that with the later version counts. The reader owns the file; entries that no consumer
changes stay as they were. No clock: every call passes the time, in ms since 1970; for durations it
also passes a monotonic time, which does not jump.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from penstock.shared.clock import Clock
from penstock.shared.errors import StoreDamaged
from penstock.shared.filters.bloom_filter import BITS, bit_positions
from penstock.shared.store.rocketmq_json import encode_document, load_document, save_document

# RocketMQ's times: a connection may be silent for this long; filters died this long before a start;
# the dead are kept for this long.
SILENT_MS = 120_000
DEAD_BEFORE_START_MS = 30_000
KEEP_DEAD_MS = 24 * 3600 * 1000
# The most that is saved; a filter for which there is no room works, but is not saved. The limit
# counts characters, which are bytes for ASCII: it only bounds memory, and is not part of a format.
MAX_FILTERS, MAX_EXPRESSION_BYTES = 2000, 1 << 20
# If all filters are alive, nobody looks for dead ones for this long. A look goes through all of
# them, and a client can cause one with every pull.
LOOK_AGAIN_MS = 1000

# RocketMQ's period. A crash loses later changes; the consumers register again.
SAVE_EVERY_MS = 10_000

Entry = dict[str, Any]
_log = logging.getLogger(__name__)


class ConsumerFilters:
    """The filters of a store, in memory. `changed` says that they are newer than the file.

    It keeps the document that it was made from, and changes it in place. For one thread.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document
        self._topics = document.setdefault("filterDataByTopic", {})
        # (topic, group) -> monotonic ms of its last sign of life in this process
        self._seen_ms: dict[tuple[str, str], int] = {}
        self._count = self._bytes = 0
        # 0: after a restart all filters are dead, and may make room at once
        self._full_until_ms = 0
        self.changed = False
        if not isinstance(self._topics, dict):
            raise ValueError("filterDataByTopic is not an object")
        for each in self._topics.values():
            # everything is checked now, so that no later call meets another form
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
        """The broker starts: no consumer has shown up yet. Call it once, before `register`.

        RocketMQ dates these deaths 30 s back.
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
        # without the topic a detached {}: a look must not create the topic
        groups = self._topics.get(topic, {}).get("groupFilterData", {})
        old = groups.get(group)
        # an older version counts as a sign of life, too
        if old is not None:
            self._seen_ms[topic, group] = monotonic_ms
        if old is not None and version <= old["clientVersion"]:
            # a consumer that still has an older filter does not revive this one
            if version == old["clientVersion"] and old["deadTime"]:
                self._revive(old, version)
            return
        # RocketMQ ignores the whole file if one entry's bits are of another size. So an entry with
        # other bits is made again; one that differs in nothing keeps its `bornTime`.
        bits = {"bitNum": BITS, "bitPos": bit_positions(group, topic)}
        kept = (old["expression"], old["expressionType"], old.get("bloomFilterData")) if old else ()
        if old is not None and kept == (expression, "SQL92", bits):
            self._revive(old, version)
        else:
            # a replacement needs room only for the difference, and may even free some
            grown = len(expression) - (len(old["expression"]) if old else 0)
            if not self._make_room(grown, old, monotonic_ms):
                return
            self._count += old is None
            self._bytes += grown
            self._seen_ms[topic, group] = monotonic_ms
            # looked up again: making room may have dropped the topic together with its last group
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
        """Bury filters whose consumers have been silent; drop those that have been dead for a day.

        Silence is measured by the monotonic clock. How long a filter has been dead is wall time,
        since the file keeps it over a restart. A clock that jumps ahead drops only dead filters
        early.
        """
        # copies, because `_drop` removes groups and topics
        for topic in list(self._topics):
            groups = self._topics[topic]["groupFilterData"]
            for group, entry in list(groups.items()):
                # without a sign of life since the start it is dead already
                seen_ms = self._seen_ms.get((topic, group), monotonic_ms)
                if entry["deadTime"] == 0 and monotonic_ms - seen_ms >= SILENT_MS:
                    self._bury(entry, now_ms)
                if entry["deadTime"] and now_ms - entry["deadTime"] >= KEEP_DEAD_MS:
                    self._drop(topic, group)

    def encode(self) -> bytes:
        """The file's content, including what this class does not know in entries."""
        return encode_document(self._document)

    def _make_room(self, size: int, beside: Entry | None, monotonic_ms: int) -> bool:
        """Make room for another filter of this size: those that have been dead for longest go
        first. Returns whether there is room.

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
        # several at once, because finding them means looking at all filters
        for number, (_, topic, group) in enumerate(sorted(dead)):
            if number >= len(dead) // 8 and has_room():
                break
            self._drop(topic, group)
        return has_room()

    def _drop(self, topic: str, group: str) -> None:
        """Forget a filter, and with the last one its topic, so that the file does not grow."""
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
        # in RocketMQ's rule a filter is dead only if it died no earlier than it was born
        entry.update(deadTime=max(at_ms, entry["bornTime"]), dead=True)
        self.changed = True


def _is_entry(entry: Any) -> bool:
    """Whether it is a filter; sets its missing numbers to 0."""
    numbers, texts = ("clientVersion", "bornTime", "deadTime"), ("expression", "expressionType")
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.setdefault(name, 0), int) for name in numbers)
        and all(isinstance(entry.get(name), str) for name in texts)
    )


def load_consumer_filters(file: Path) -> ConsumerFilters:
    """The filters of a store as they were last saved; a running broker may have newer ones.

    Raises StoreDamaged: see load_document. Raises OSError.
    """
    return load_document(file, ConsumerFilters)


class ConsumerFilterFile:
    """The file of a running broker, which its one owner saves from time to time.

    What is served does not depend on the file. So if it is broken, or the disk refuses it, that is
    a line in the log and no reason to stop.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        """Raises OSError for a file that exists and cannot be read."""
        self._file = file
        self._clock = clock
        self._saved_ms = clock.monotonic_ms()
        try:
            self.filters = load_consumer_filters(file)
        except StoreDamaged as error:
            # consumers register again when they show up; nothing else depends on the file
            _log.warning("starting without the written-down filters: %s", error)
            self.filters = ConsumerFilters({})
        self.filters.began(clock.now_ms())

    def register(self, topic: str, group: str, expression: str, version: int) -> None:
        """A consumer of a group shows up with its SQL92 filter. In memory: `save` writes it."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self.filters.register(topic, group, expression, version, now_ms, monotonic_ms)

    def save(self, *, at_once: bool = False) -> None:
        """Save changes, at most every SAVE_EVERY_MS. If the disk refuses, a later call tries again.

        `at_once` is for a stop, which has no later call.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if not at_once and monotonic_ms - self._saved_ms < SAVE_EVERY_MS:
            return
        # set before the attempt: after a refusal the next try is in SAVE_EVERY_MS, not next cycle
        self._saved_ms = monotonic_ms
        self.filters.clean(self._clock.now_ms(), monotonic_ms)
        if self.filters.changed:
            try:
                save_document(self._file, self.filters.encode())
            except OSError as error:
                _log.warning("cannot save %s, trying again later: %s", self._file, error)
            else:
                self.filters.changed = False
