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

from penstock.shared.bloom_filter import BITS, bit_positions
from penstock.shared.clock import Clock
from penstock.shared.config_json import encode_document, load_document, save_document
from penstock.shared.errors import FilterError, StoreDamaged

# RocketMQ's times: of a connection without a sign of life, of a start, and of the dead.
SILENT_MS = 120_000
DEAD_BEFORE_START_MS = 30_000
KEEP_DEAD_MS = 24 * 3600 * 1000
MAX_FILTERS = 10_000

SAVE_EVERY_MS = 10_000

Entry = dict[str, Any]
_log = logging.getLogger(__name__)


class ConsumerFilters:
    """The filters of a store, in memory. `changed` says that the file is behind."""

    def __init__(self, document: dict[str, Any]) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document
        self._topics = document.setdefault("filterDataByTopic", {})
        self._seen_ms: dict[tuple[str, str], int] = {}
        self.changed = False
        if not isinstance(self._topics, dict):
            raise ValueError("filterDataByTopic is not an object")
        for each in self._topics.values():
            groups = each.get("groupFilterData") if isinstance(each, dict) else None
            if not isinstance(groups, dict) or not all(map(_is_entry, groups.values())):
                raise ValueError("groupFilterData is not an object of filters")

    def all(self) -> list[Entry]:
        return [
            entry
            for topic in sorted(self._topics)
            for _, entry in sorted(self._topics[topic]["groupFilterData"].items())
        ]

    def began(self, now_ms: int) -> None:
        """The broker starts: nobody has shown up yet."""
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
        """A consumer of a group shows up with its SQL92 filter. Raises FilterError."""
        self._seen_ms[topic, group] = monotonic_ms
        groups = self._topics.get(topic, {}).get("groupFilterData", {})
        old = groups.get(group)
        if old is not None and version <= old["clientVersion"]:
            if version == old["clientVersion"] and old["deadTime"]:
                self._revive(old, version)
            return
        bits = {"bitNum": BITS, "bitPos": bit_positions(group, topic)}
        kept = (old["expression"], old["expressionType"], old.get("bloomFilterData")) if old else ()
        if old is not None and kept == (expression, "SQL92", bits):
            self._revive(old, version)
        else:
            if old is None and sum(map(len, self._groups())) >= MAX_FILTERS:
                raise FilterError(
                    f"the store holds {MAX_FILTERS} filters of groups, the most there can be",
                    group,
                    "subscribe without a group name",
                )
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
        """Bury those that have been silent, and drop those that have been dead for a day."""
        for topic in list(self._topics):
            groups = self._topics[topic]["groupFilterData"]
            for group, entry in list(groups.items()):
                # nobody has shown up since the start, so it is dead already
                seen_ms = self._seen_ms.get((topic, group), monotonic_ms)
                if entry["deadTime"] == 0 and monotonic_ms - seen_ms >= SILENT_MS:
                    self._bury(entry, now_ms)
                if entry["deadTime"] and now_ms - entry["deadTime"] >= KEEP_DEAD_MS:
                    del groups[group]
                    self._seen_ms.pop((topic, group), None)
                    self.changed = True
            if not groups:
                del self._topics[topic]
                self.changed = True

    def encode(self) -> bytes:
        return encode_document(self._document)

    def _groups(self) -> list[dict[str, Entry]]:
        return [each["groupFilterData"] for each in self._topics.values()]

    def _revive(self, entry: Entry, version: int) -> None:
        entry.update(clientVersion=version, deadTime=0, dead=False)
        self.changed = True

    def _bury(self, entry: Entry, at_ms: int) -> None:
        # RocketMQ calls dead what died no earlier than it was born
        entry.update(deadTime=max(at_ms, entry["bornTime"]), dead=True)
        self.changed = True


def _is_entry(entry: Any) -> bool:
    numbers, texts = ("clientVersion", "bornTime", "deadTime"), ("expression", "expressionType")
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.setdefault(name, 0), int) for name in numbers)
        and all(isinstance(entry.get(name), str) for name in texts)
    )


def load_consumer_filters(file: Path) -> ConsumerFilters:
    """The filters of a store. Raises StoreDamaged: see load_document."""
    return load_document(file, ConsumerFilters)


class ConsumerFilterFile:
    """The file of a running broker, which its one owner saves now and then."""

    def __init__(self, file: Path, clock: Clock) -> None:
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
        """A consumer of a group shows up with its SQL92 filter. Raises FilterError."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        self.filters.register(topic, group, expression, version, now_ms, monotonic_ms)

    def save(self, *, at_once: bool = False) -> None:
        """Save changes, at most every SAVE_EVERY_MS. A disk that refuses is asked again."""
        monotonic_ms = self._clock.monotonic_ms()
        if not at_once and monotonic_ms - self._saved_ms < SAVE_EVERY_MS:
            return
        self._saved_ms = monotonic_ms
        self.filters.clean(self._clock.now_ms(), monotonic_ms)
        if self.filters.changed:
            try:
                save_document(self._file, self.filters.encode())
            except OSError as error:
                _log.warning("cannot save %s, trying again later: %s", self._file, error)
            else:
                self.filters.changed = False
