"""What is wrong with a start on a damaged store, and with its repair.

A store is read twice: by consumers, from a broker whose actors all run in this process, and then
from its directory. The two must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.chaos.history import digest, lost
from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.placed import Key, Placed
from penstock.chaos.stepped.whole_broker import Reading, whole_broker
from penstock.chaos.storage.harm import Hit, others_directories
from penstock.maintenance.repair import repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, PenstockError
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.formats.properties import decode_properties, is_tombstone
from penstock.shared.layout import StorePaths
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.deletions import load_deletions
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import KEYS, settled_sizes
from penstock.shared.store.lock import stopped_store
from penstock.shared.store.topics import load_topics

_OTHERS_FILES = 2
# files that a start does not need
_HISTORY = frozenset(("deletions.json", "deletions.json.broken", "recovery.json", "retention.json"))

Queue = tuple[str, int]


class Seen(NamedTuple):
    """A start that was not refused: what it reports, and what consumers got of each queue."""

    recovered: Recovered
    readings: dict[int, Reading]
    refused: dict[int, str]  # queues refused as a whole, and the error


class Judge:
    """Starts and repairs one damaged store, and says what is wrong with what they do."""

    def __init__(self, root: Path, config: Config, original: list[Placed], hits: list[Hit]) -> None:
        self._root = root
        self._config = msgspec.structs.replace(
            # keep what the scene has made old enough to expire
            config,
            store_path_root_dir=str(root),
            file_reserved_time_h=24 * 365,
        )
        self._original = original
        self._hits = hits
        self._files = {hit.file for hit in hits}
        self._bent = [
            (int(hit.file.name) + hit.start, int(hit.file.name) + max(hit.end, hit.start + 1))
            for hit in hits
            if hit.file.parent.name == "commitlog"
        ]

    def judge(self) -> list[str]:
        log = self._log()
        wrong = []
        try:
            found = self._start()
        except PenstockError as error:
            if self._log() != log:
                wrong.append("a start that was refused has changed the log")
            if all(file.name in _HISTORY for file in self._files):
                wrong.append(f"refused over a file that nobody needs: {error}")
            if not self._is_named(error):
                wrong.append(f"the error names no file: {error}")
            geometry = StorePaths(self._root).geometry
            if f"rm {geometry}" in str(error):
                geometry.unlink()
                return wrong + self.judge()
        else:
            wrong += self._look(found) + self._look_back(found)
        wrong += [f"after a repair: {each}" for each in self._repair()]
        if any(hit.what == "led elsewhere" for hit in self._hits):
            left = [len(list(each.glob("*"))) for each in others_directories(self._root)]
            if left != [_OTHERS_FILES] * len(left):
                wrong.append("files of others are gone")
        return wrong

    def _start(self) -> Seen:
        readings: dict[int, Reading] = {}
        refused: dict[int, str] = {}
        with whole_broker(self._settled()) as broker:
            for queue in sorted({each.sent.queue_id for each in self._original if each.is_load}):
                try:
                    readings[queue] = broker.read(TOPIC, queue)
                except PenstockError as error:
                    refused[queue] = f"queue {queue} is refused to consumers: {error}"
        return Seen(broker.store.recovered, readings, refused)

    def _settled(self) -> Config:
        """The configuration with the sizes that the store says; any size it asks for is passed."""
        given: dict[str, int] = {}
        while True:
            try:
                sizes = settled_sizes(self._root, given, dict.fromkeys(given, "flag"))
            except ConfigError as error:
                asked = [key for key in KEYS if f"{key} is not known" in error.what]
                if not asked or asked[0] in given:
                    raise
                given[asked[0]] = getattr(self._config, asked[0])
            else:
                return msgspec.structs.replace(self._config, **sizes)

    def _repair(self) -> list[str]:
        try:
            with stopped_store(self._root) as (paths, last_run):
                repair_store(paths, self._settled(), SystemClock(), last_run)
            found = self._start()
        except PenstockError as error:
            # fine if it is about a file that only a user can repair
            is_known = any(file.name in str(error) for file in self._files)
            return [] if is_known else [f"refused: {error}"]
        damage = found.recovered.quarantined
        wrong = [f"the store is read-only: {damage[0]}"] if damage else []
        return wrong + self._look(found, repaired=True) + self._look_back(found)

    def _is_named(self, error: PenstockError) -> bool:
        """Whether a refusal is about a file that was hit, or about one beside it."""
        paths = StorePaths(self._root)
        beside = {str(file.parent) for file in self._files if file.parent != self._root}
        if paths.geometry in self._files:
            # Its sizes may be ones that the files do not have: the refusal then names such files. A
            # single file of another length may as well have been cut, so it does not refute a size.
            beside |= {str(paths.index), str(paths.commit_log), str(paths.consume_queue)}
        names = beside | {file.name for file in self._files}
        return any(name in str(error) for name in names)

    def _look_back(self, seen: Seen) -> list[str]:
        """What is wrong with the list of deletions, which the cleaner has corrected by now."""
        last, found = load_deletions(StorePaths(self._root))[-1:], seen.recovered
        if last and last[0].log_end > found.log_start and not found.quarantined:
            return [f"{last[0].log_end} is the end of a deletion, and the log still has it"]
        return []

    def _look(self, seen: Seen, *, repaired: bool = False) -> list[str]:
        """What is wrong with a store on which a broker has started."""
        named = {problem.file for problem in verify_store(self._root).problems}
        stored, ranges = self._read()
        wrong, missing = self._compare(seen, stored, ranges, repaired=repaired), list[str]()
        for each in self._original:
            topic, queue, offset = each.key
            got = stored.get(each.key)
            if got is not None and digest(got) != each.sent.digest and not self._is_hit(each):
                wrong.append(f"{topic}/{queue}:{offset} has other bytes")
            if got is None and not self._is_hit(each):
                is_named = any(f"/{topic}/{queue}" in file for file in named)
                if repaired or not is_named or self._is_made_again(topic, queue):
                    missing.append(f"{topic}/{queue}:{offset}")
        if missing and not self._is_unlisted:
            wrong.append(lost(len(missing), "which were not hit", missing))
        return (wrong + self._ends(seen.recovered, ranges))[:4]

    def _ends(self, found: Recovered, ranges: dict[Queue, range]) -> list[str]:
        """Offsets that would be given a second time, to another message."""
        # not judged where the witness of a queue's end, or the log's, was hit together with it
        if found.quarantined or self._is_unlisted or self._are_hit("commitlog", "watermark"):
            return []
        # a message that was hit together with its queue and the list has left no trace
        is_forgotten = self._are_hit("consumequeue", "queues")
        newest = {
            each.key[:2]: each.sent.queue_offset
            for each in self._original
            if not (is_forgotten and self._is_hit(each))
        }
        wrong = [
            f"{topic}/{queue} goes on at {end}, and has had {last}"
            for (topic, queue), last in newest.items()
            if (end := ranges.get((topic, queue), range(0)).stop) <= last
        ]
        if found.log_end < max(each.end for each in self._original):
            wrong.append(f"the log goes on at {found.log_end}, in the midst of what was told")
        return wrong

    def _compare(
        self,
        seen: Seen,
        stored: dict[Key, bytes],
        ranges: dict[Queue, range],
        *,
        repaired: bool,
    ) -> list[str]:
        """How what consumers got differs from what the directory has."""
        wrong = [said for queue, said in seen.refused.items() if self._is_readable(queue)]
        for queue, reading in seen.readings.items():
            offsets = ranges.get((TOPIC, queue), range(0))
            here = {at: stored.get((TOPIC, queue, at)) for at in range(offsets.start, reading.end)}
            found = self._unlike(queue, reading, here)
            counted = len(reading.messages) + reading.passed_over + len(reading.unreadable)
            if counted != len(here):
                found.append(f"{counted} of {len(here)} offsets are met")
            bad = [*self._repairable(queue, reading), *filter(None, [reading.why_stopped])]
            if repaired and bad:
                found.append(f"it cannot be read: {bad[0]}")
            if not reading.why_stopped and reading.end != offsets.stop:
                found.append(f"it ends at {reading.end}, of {offsets}")
            wrong += [f"to a consumer of queue {queue}: {each}" for each in found]
        return wrong

    def _repairable(self, queue: int, reading: Reading) -> list[str]:
        """What consumers are told of messages that they cannot read, except for one kind: a hit in
        a record's flags, which no checksum covers, may change the form of its body. A repair leaves
        it."""
        hit = {
            each.sent.queue_offset
            for each in self._original
            if each.key[:2] == (TOPIC, queue) and self._is_hit(each)
        }
        return [
            error
            for at, error in reading.unreadable.items()
            if at not in hit or "cannot be decompressed" not in error
        ]

    def _is_readable(self, queue: int) -> bool:
        """Whether the topics' file lets a queue be read. A flipped bit there may deny it: nothing
        can tell that bit from an operator's decision, and the file decides how a topic is
        served."""
        found = load_topics(StorePaths(self._root).topics).get(TOPIC)
        return found is None or found.is_readable and queue < found.read_queues

    def _unlike(self, queue: int, reading: Reading, here: dict[int, bytes | None]) -> list[str]:
        """Which messages are not the ones that were sent, or differ from the directory's."""
        sent = {
            each.sent.queue_offset: each
            for each in self._original
            if each.key[:2] == (TOPIC, queue)
        }
        given = reading.messages
        other = [at for at in given.keys() & sent if digest(given[at]) != sent[at].sent.digest]
        # a message that was hit may or may not be told from others
        unsure = {at for at, each in sent.items() if self._is_hit(each)} | reading.unreadable.keys()
        differing = [
            at
            for at in here.keys() | given.keys()
            if at not in unsure and here.get(at) != given.get(at)
        ]
        wrong = [f"{sorted(other)[:3]} have other bytes"] if other else []
        return wrong + (
            [f"{sorted(differing)[:3]} differ from the directory's"] if differing else []
        )

    def _are_hit(self, *names: str) -> bool:
        """Whether a file of each of these parts was hit."""
        parts = {part for file in self._files for part in file.relative_to(self._root).parts[:2]}
        return set(names) <= parts

    @property
    def _is_unlisted(self) -> bool:
        """Whether a queue has lost its end and nothing is left that says so: the list is an older
        one, or the file that tells whose list it is was hit as well."""
        older = {hit.file for hit in self._hits if hit.what == "an older copy"}
        whose = ("watermark", "run.json", "abort", "checkpoint")
        is_older = StorePaths(self._root).known_queues in older
        is_doubted = is_older or any(self._are_hit(each) for each in whose)
        return self._are_hit("consumequeue", "queues") and is_doubted

    def _is_made_again(self, topic: str, queue: int) -> bool:
        """Whether a queue has only lost files. A start makes such a queue whole again; other harm
        to it only `verify` may report."""
        paths = StorePaths(self._root)
        directory = paths.queue(topic, queue)
        done = {hit.what for hit in self._hits if hit.file.parent == directory}
        return done == {"deleted"} and paths.known_queues not in self._files

    def _is_hit(self, each: Placed) -> bool:
        return any(each.position < end and start < each.end for start, end in self._bent)

    def _read(self) -> tuple[dict[Key, bytes], dict[Queue, range]]:
        """The body of each message that the directory has, and the offsets of each queue.

        It skips damaged records, and entries that lead to another queue's: readers report those.
        """
        stored: dict[Key, bytes] = {}
        ranges: dict[Queue, range] = {}
        with StoreDirectory(self._root) as store:
            for queue in store.queues():
                name = queue.topic, queue.queue_id
                ranges[name] = range(queue.min_offset, queue.max_offset)
                entries = queue.entries(queue.min_offset, queue.max_offset)
                for number, entry in enumerate(entries, queue.min_offset):
                    if entry["size"] <= 0:
                        continue  # readers report that it leads nowhere
                    try:
                        record = store.record_at(int(entry["offset"]))
                    except PenstockError:
                        continue
                    own = (record.topic, record.queue_id, record.queue_offset) == (*name, number)
                    if own and not is_tombstone(decode_properties(record.properties)):
                        stored[*name, number] = bytes(record.body)
        return stored, ranges

    def _log(self) -> dict[str, int]:
        return {path.name: hash(read_file(path)) for path in (self._root / "commitlog").iterdir()}
