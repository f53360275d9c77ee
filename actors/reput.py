"""The reput: walks the log, and writes messages' entries to consume queues and keys to the index.

Owns:     `queued`, `dispatched`, `dispatched_record`, `dispatch_error`, `name_error`,
          `queue_count`, `forgotten_topics`, `deleted_queues`; the queue table; consumequeue/;
          index/.
Reads:    `flushed` (sync) or `committed` (async), and the log up to there; `commit_error`,
          `flush_error`; `deleted_topics`, and penstock/deleted-topics.json; who waits.
Hears:    doorbells of the flusher and the committer; the writer's, of topics.
Notifies: reader, gateway, coordinator, transactions and scheduler: where pulls wait, or seldom.
On crash: the next one goes on at `dispatched`. An entry has one place, so writing it again changes
          nothing; a queue's max offset never goes back, nor does `queued`. The index drops what
          lies past `dispatched` before it gets it again, so no key is in it twice.

Consumers wait for the queues, but nobody waits for keys: so the reader is notified of the queues
before the index is written.

When the disk refuses an entry, usually because it is full, the reput waits and tries again: nothing
is lost, but consumers see no new messages meanwhile. Before a queue gets another file, the names of
the earlier ones are synced. If that fails, nobody knows which of them are on disk: nothing more is
dispatched, and the flusher, which learns of it by `name_error`, vouches for no queue.

When a topic is deleted, the reput marks its queues in the table, then moves their directory out of
the way, to penstock/deleted/, where the cleaner empties it, then stores `forgotten_topics`. It does
all that before it dispatches anything that was stored later: so records of the name after that are
another topic's. Records of the deleted topic, met again after a crash, get no entries.
"""

from __future__ import annotations

from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import FlushFailed, unfinished_files
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.index_chains import Entries
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_check import Kind, examine, jumps
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, blank_size
from penstock.shared.formats.record_outline import outline
from penstock.shared.index.directory import index_geometry
from penstock.shared.index.index_file import IndexFiles
from penstock.shared.layout import StorePaths
from penstock.shared.log.reader import LogReader
from penstock.shared.loops.active import QueueNumbers, dispatch
from penstock.shared.loops.forms import ROW, Dispatched, rows_of
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.next_steps import verify
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS, LazyLooks, pulls_wait
from penstock.shared.process.retry import Retry
from penstock.shared.queue.deleted_topics import load_deleted_topics, move_queues_away
from penstock.shared.queue.earlier_entries import (
    EARLIER_ENTRIES,
    EarlierEntries,
    Place,
    load_earlier_entries,
)
from penstock.shared.queue.slot_order import SlotOrder
from penstock.shared.queue.windows import DirectorySyncFailed, QueueWindows

# One cycle walks at most this much; the heartbeat comes between cycles.
CYCLE_BYTES = 4 << 20
# These follow queues for others and may be a tick late, unless somebody waits there.
FOLLOWERS = ("reader", "gateway", "coordinator", "transactions", "scheduler")


class Reput(Actor):
    """Dispatches the log's records to the consume queues and the index."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._paths = StorePaths(stage.config.store)
        self._positions = stage.positions
        self._bound = "flushed" if stage.config.sync_flush else "committed"
        self._retry = Retry(stage.clock)
        self._looks = LazyLooks()
        self._told_ms = -TICK_MS
        self._levels_ms = parse_delay_levels(stage.config.message_delay_level)
        self._index: IndexFiles | None = None

    def start(self) -> None:
        config, run = self._stage.config, self._stage.run
        for growing in unfinished_files(self._paths.staging):
            if not growing.name.startswith("commitlog-"):  # the allocator's
                growing.unlink()
        self._dispatched = self._positions["dispatched"]
        self._doubted_to = self._positions["wrote"]
        self._log = LogReader(config, run, self._positions)
        self._table = QueueTable(run.queues, writable=True)
        self._count = self._positions["queue_count"]
        self._deleted = {slot for slot in range(self._count) if self._table.is_deleted(slot)}
        self._number_queues()
        self._forgotten = self._positions["forgotten_topics"]
        # topic -> log offset: its records that begin below are of a deleted topic of that name
        self._gone = load_deleted_topics(self._paths.deleted_topics).ends()
        self._earlier = EarlierEntries(
            load_earlier_entries(run.path / EARLIER_ENTRIES), self._named
        )

    def _number_queues(self) -> None:
        """Number the queues by their slots in the table. A deleted queue's slot gets a name that no
        record can have: if its name comes again, that is another queue."""
        self._numbers = QueueNumbers(
            [
                (b"", slot) if slot in self._deleted else (key.topic.encode(), key.queue_id)
                for slot, key in self._table.keys(0, self._count)
            ]
        )
        self._windows = QueueWindows(self._paths, self._stage.config, self._numbers)
        # The entries in the queues count: dispatching goes on after them.
        self._order: SlotOrder[int, tuple[int, int, bytes]] = SlotOrder(
            lambda queue: self._table.max_offset(queue) if queue < self._count else None
        )
        self._looked: tuple[Dispatched, bytes] | None = None

    def work(self) -> int:
        bound, now_ms = self._positions[self._bound], self._stage.clock.monotonic_ms()
        if self._positions["name_error"]:
            return 0
        # read after the bound: deletions of topics are known before what was stored after them
        has_gone = self._positions["deleted_topics"] != self._forgotten
        if self._retry.waits or self._dispatched >= bound and not has_gone:
            if self._log.rest(now_ms):
                self._windows.release_pages()
            return 0
        try:
            with self._stage.disk:
                if has_gone:
                    self._forget_topics()
                moved = self._dispatch_next(bound) if self._dispatched < bound else 0
        except OSError as error:
            self._close_index()
            if isinstance(error, DirectorySyncFailed):
                self._positions.publish("name_error", error.errno or 1)
            number = error.errno or 1
            if number != self._positions["dispatch_error"]:
                self._stage.report(f"consumers see no new messages: {error}; trying again")
            self._positions.publish("dispatch_error", number)
            self._retry.put_off()
            return 0
        self._retry.succeeded()
        if self._positions["dispatch_error"]:
            # before `dispatched`: a successor that finds nothing to dispatch would leave it set
            self._stage.report("consumers see new messages again")
            self._positions.publish("dispatch_error", 0)
        if not moved:
            return 1
        self._looks.note(now_ms)
        crash_point("reput.after_record_before_cursor")
        self._dispatched += moved
        self._positions.publish("dispatched", self._dispatched)
        crash_point("reput.after_cursor")
        if 0 < self._earlier.end <= self._dispatched:
            (self._stage.run.path / EARLIER_ENTRIES).unlink(missing_ok=True)
            self._earlier = EarlierEntries((), self._named)
        self._tell_queued(self._dispatched)
        return 1

    def _tell_queued(self, end: int) -> None:
        """Publish that queues hold all below `end`; a predecessor may have published more."""
        if end > self._positions["queued"]:
            self._positions.publish_before_loads("queued", end)
            self._notify()

    def _notify(self) -> None:
        """Notify the followers. Once notified, they look at each tick for a while; see `Ticks`."""
        now_ms = self._stage.clock.monotonic_ms()
        are_due = now_ms - self._told_ms >= TICK_MS
        self._told_ms = now_ms if are_due else self._told_ms
        for target in FOLLOWERS:
            if are_due or pulls_wait(self._positions, target):
                self._stage.bus.notify(target)

    def _dispatch_next(self, bound: int) -> int:
        """Dispatch some records below `bound`, or skip a blank or damage; returns bytes passed."""
        damage = self._log.damaged.at(self._dispatched)
        if damage is not None:
            return min(bound, damage.end) - self._dispatched
        limit = min(bound, self._dispatched + CYCLE_BYTES)
        view = self._log.view(self._dispatched, limit)
        moved = self._dispatch(view)
        if not moved:
            moved = blank_size(view)
            if not moved and limit < bound:
                # a record longer than a cycle
                view = self._log.view(self._dispatched, bound)
                moved = self._dispatch(view)
        if not moved:
            raise StoreDamaged(
                "no record and no blank begins where the last one ends",
                f"log offset {self._dispatched}",
                verify(self._stage.config.store),
            )
        return moved

    def _dispatch(self, view: memoryview) -> int:
        """Write the entries of the whole records in a piece of the log; returns their bytes."""
        found, rows = self._looked or self._look(view)
        crash_point("reput.before_cq")
        self._add_queues(rows)
        rows = self._fill(rows) if self._log.damaged else rows
        self._windows.put(rows)
        crash_point("reput.after_entries_before_offset")
        self._table.move_max_offsets(rows)
        self._tell_queued(self._dispatched + found.size)
        crash_point("reput.after_cq_before_index")
        if found.keys is not None and len(found.keys.hashes):
            self._put_keys(found.keys)
        crash_point("reput.after_index_before_cursor")
        if found.records:
            self._positions.publish("dispatched_record", found.last)
        self._looked = None
        return found.size

    def _look(self, view: memoryview) -> tuple[Dispatched, bytes]:
        """The whole records in a piece of the log, and the entries that they get."""
        indexed = self._stage.config.message_index_enable
        # Some may be of deleted topics, or name a queue that is not theirs. Such a queue must not
        # get a number, because a number is a slot.
        is_mixed = self._dispatched < max([self._earlier.end, *self._gone.values()])
        scratch = QueueNumbers() if is_mixed else None
        numbers = self._numbers if scratch is None else scratch
        found = dispatch(view, self._dispatched, numbers, self._levels_ms, indexed)
        rows = self._placed(found.rows, scratch) if scratch is not None else found.rows
        if self._dispatched >= self._doubted_to:
            return found, rows
        # Kept until all of it is stored. If the disk refused an entry and its record were looked
        # at again, it would follow itself, and count as one that names another's slot.
        self._looked = found, self._possible(rows)
        return self._looked

    def _placed(self, rows: bytes, names: QueueNumbers) -> bytes:
        """The rows with queue numbers, without those of deleted topics. Records go where they were
        before, if that is known. `names` has the queues that they name."""
        kept = []
        for number, queue_offset, entry in ROW.iter_unpack(rows):
            key, position = names.names[number], ENTRY.unpack(entry)[0]
            if position < self._gone.get(key[0].decode(), 0):
                continue
            place = self._earlier.place(key, queue_offset, entry)
            if place != (key, queue_offset):
                stood = f"it stood at {place.slot} of {_shown(place.queue)}" if place else ""
                self._stage.report(
                    f"the record at {position} names {queue_offset} of {_shown(key)}, and is not "
                    f"served there: {stood or 'another has that slot'}"
                )
            if place is not None:
                kept.append(ROW.pack(self._numbers.number(*place.queue), place.slot, entry))
        return b"".join(kept)

    def _named(self, position: int, size: int) -> Place | None:
        """The queue and slot that the whole record at a log offset names; None if there is none."""
        if not self._positions["log_start"] <= position <= self._doubted_to - size:
            return None
        if self._log.damaged.touches(position, size):
            return None
        view = self._log.view(position, position + size)
        kind, found, _ = examine(view, 0, len(view), position=position)
        if kind is not Kind.RECORD or found != size:
            return None
        fields = outline(view)
        return Place((fields.topic, fields.queue_id), fields.queue_offset)

    def _forget_topics(self) -> None:
        """Take away the queues of deleted topics. Raises OSError; then it is all done again, before
        anything is dispatched."""
        deleted = load_deleted_topics(self._paths.deleted_topics)
        going = {row.topic: row for row in deleted.rows if row.is_done}
        going = {topic: row for topic, row in going.items() if row.number > self._forgotten}
        for slot, key in self._table.keys(0, self._count):
            if key.topic in going:
                self._table.mark_deleted(slot)
                self._deleted.add(slot)
        self._positions.publish("deleted_queues", len(self._deleted))
        crash_point("reput.queues_marked")
        # a mapping would keep the blocks of a deleted file
        self._windows.close()
        self._number_queues()
        for row in going.values():
            try:
                move_queues_away(self._paths, row)
            except FlushFailed as error:
                raise DirectorySyncFailed(error.errno, error.strerror, error.filename) from error
            crash_point("reput.queues_moved")
        self._gone = deleted.ends()
        last = max([self._positions["deleted_topics"], *(row.number for row in going.values())])
        self._forgotten = last
        self._positions.publish("forgotten_topics", last)
        self._notify()

    def _add_queues(self, rows: bytes) -> None:
        """Give the new queues in these rows their slots of the table."""
        new = range(self._count, len(self._numbers.names))
        if not new:
            return
        first: dict[int, int] = {}
        for queue, queue_offset, _ in ROW.iter_unpack(rows):
            first.setdefault(queue, queue_offset)
        for slot in new:
            if slot not in first:
                return  # a try that failed met it, in a record past these rows
            topic, queue_id = self._numbers.names[slot]
            key = QueueKey(topic.decode(), queue_id)
            self._table.add(slot, key, min_offset=first[slot], max_offset=first[slot])
            self._count += 1
            crash_point("reput.new_queue")
            self._positions.publish("queue_count", self._count)

    def _possible(self, rows: bytes) -> bytes:
        """The rows without those that jump or name another's slot, and with one for each message
        that is missing.

        No checksum covers a record's queue. Only the log as this process found it is checked like
        this, because no writer makes such records. A missing message's slot leads to the next
        message of its queue, so consumers skip it.
        """
        kept = []
        for row in ROW.iter_unpack(rows):
            queue, queue_offset, entry = row
            position, _, _ = ENTRY.unpack(entry)
            end = self._order.end(queue, queue_offset)
            place = f"{_shown(self._numbers.names[queue])} goes on at {queue_offset} behind {end}"
            is_ahead = queue_offset > end
            if is_ahead and jumps(queue_offset, end, position, self._positions["log_start"]):
                self._stage.report(f"the record at {position} is passed over: {place}")
                continue
            accepted, has_slot = self._order.take(queue, queue_offset, row)
            if accepted is not None:
                kept.append(ROW.pack(*accepted))
            if is_ahead and not self._log.damaged:  # with damage, its slots point there: see _fill
                self._stage.report(f"messages are missing in front of {position}: {place}")
                kept.append(rows_of(queue, end, entry * (queue_offset - end)))
            if has_slot:
                kept.append(ROW.pack(*row))
        self._tell_passed_over()
        return b"".join(kept)

    def _tell_passed_over(self) -> None:
        """Report the records that turned out to have no slot."""
        order = self._order
        for found in (order.left_out, order.overtaken, order.undecided):
            for queue, queue_offset, entry in found:
                self._stage.report(
                    f"the record at {ENTRY.unpack(entry)[0]} is passed over: {queue_offset} of "
                    f"{_shown(self._numbers.names[queue])} is another's"
                )
            found.clear()

    def _fill(self, rows: bytes) -> bytes:
        """Add entries for messages that were lost in damage: they point to it, never nowhere."""
        damage = self._log.damaged.before(self._dispatched)
        if damage is None:
            return rows
        lost = ENTRY.pack(damage.position, damage.size, 0)
        most = self._log.damaged.size_bytes // SMALLEST_RECORD_BYTES
        filled, ends = [], dict[int, int]()
        for row in ROW.iter_unpack(rows):
            queue, queue_offset, _ = row
            end = ends.get(queue, self._table.max_offset(queue))
            if 0 < queue_offset - end <= most:
                filled.append(rows_of(queue, end, lost * (queue_offset - end)))
            filled.append(ROW.pack(*row))
            ends[queue] = max(end, queue_offset + 1)
        return b"".join(filled)

    def _put_keys(self, keys: Entries) -> None:
        if self._index is None:
            paths, config = self._paths, self._stage.config
            geometry, now_ms = index_geometry(config), self._stage.clock.now_ms
            self._index = IndexFiles(paths.index, paths.staging, geometry, now_ms)
            self._index.cut(self._dispatched, self._log.stored_ms)
        self._index.put(keys)

    def _close_index(self) -> None:
        """After an error nobody knows what was written, so the next use begins with a cut."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def idle_ms(self) -> int:
        most_ms = TICK_MS if self._retry.has_failed else QUIET_TICK_MS
        return self._looks.idle_ms(self._stage.clock.monotonic_ms(), most_ms)

    def release_deleted(self) -> None:
        self._log.release_deleted(self._stage.clock.monotonic_ms())

    def drained(self) -> bool:
        if any(self._positions[name] for name in ("dispatch_error", "commit_error", "flush_error")):
            return True  # the rest is for the next start
        return self._dispatched == self._positions["wrote"]

    def close(self) -> None:
        self._close_index()
        self._windows.close()
        self._table.close()
        self._log.close()


def _shown(queue: tuple[bytes, int]) -> str:
    topic, queue_id = queue
    return f"queue {topic.decode()}/{queue_id}"
