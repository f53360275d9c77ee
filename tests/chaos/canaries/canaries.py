"""Bugs on purpose: what the chaos harness must find, or it is worth nothing.

Each canary is one mistake that somebody could make, as a function that puts it into a module of
Penstock right after the module's own code has run: so the bug is in the broker's processes and in
the checking one alike. A canary names the kind of fault that must find it.

Nothing here is part of the product. Functions are replaced by name, and call what they replace
wherever that is possible, so that they do not depend on how it is written.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from inspect import isfunction, signature
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

PAGE_BYTES = 4096


class Canary(NamedTuple):
    """A bug, the module it goes into, and the kind of chaos that finds it."""

    name: str
    module: str
    faults: str
    sentence: str
    put_in: Callable[[Any], None]


CANARIES: dict[str, Canary] = {}


def canary(module: str, faults: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Declare a canary; the function's docstring says what is wrong."""

    def declare(put_in: Callable[[Any], None]) -> Callable[[Any], None]:
        name, sentence = put_in.__name__, put_in.__doc__ or ""
        CANARIES[name] = Canary(name, f"penstock.{module}", faults, sentence, put_in)
        return put_in

    return declare


class _Release(MetaPathFinder):
    """Loads the canary's module as ever, and puts the bug in."""

    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._canary.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_with_bug(module: ModuleType) -> None:
            load(module)
            put(self._canary, module)

        spec.loader.exec_module = load_with_bug
        return spec


def _replaceable(module: ModuleType) -> dict[str, Any]:
    """All that a canary could replace in this module, and in its classes."""
    found = dict(vars(module))
    for each in vars(module).values():
        if isinstance(each, type) and each.__module__ == module.__name__:
            found |= {f"{each.__name__}.{name}": value for name, value in vars(each).items()}
    return found


def _check_fit(before: dict[str, Any], after: dict[str, Any]) -> None:
    """The product goes on, and a canary that it has left behind is no bug, or only a crash."""
    assert after.keys() == before.keys(), f"nobody has {after.keys() - before.keys()}"
    for name, old in before.items():
        if isfunction(old) and isfunction(new := after[name]) and new is not old:
            takes = signature(old).parameters.values()
            named = {each.name: None for each in takes if each.kind is each.KEYWORD_ONLY}
            signature(new).bind(*[None] * (len(takes) - len(named)), **named)


def put(canary: Canary, module: ModuleType) -> None:
    """Have a bug in its module. Raises an error where it does not fit what it replaces."""
    before = _replaceable(module)
    canary.put_in(module)
    _check_fit(before, _replaceable(module))


def release(name: str) -> None:
    """Have this bug in this process, from the first import of its module on."""
    sys.meta_path.insert(0, _Release(CANARIES[name]))


# --- told too early ---


@canary("actors.writer.actor", "power")
def acknowledged_before_flush(writer: Any) -> None:
    """A producer who waits for the disk is answered as soon as the message is in memory."""
    acknowledge = writer.Writer._acknowledge

    def at_once(self: Any, frame: Any, runs: Any) -> None:
        request = msgspec.structs.replace(frame.request, ack="written")
        acknowledge(self, frame._replace(request=request), runs)

    writer.Writer._acknowledge = at_once


@canary("actors.flusher.actor", "power")
def flushed_before_sync(flusher: Any) -> None:
    """`flushed` is published before the segment is synced."""
    flush_log = flusher.Flusher._flush_log

    def publish_first(self: Any) -> int:
        if self._positions["flush_wanted"] > self._flushed:
            self._positions.publish("flushed", self._positions["committed"])
            self._stage.bus.notify("writer")
        return int(flush_log(self))

    flusher.Flusher._flush_log = publish_first


@canary("shared.filters.sql92_parser", "frames")
def filters_nested_without_bound(parser: Any) -> None:
    """A filter may be as deep as it is long, and a parser that has no stack for it takes the reader
    with it."""
    parser.MAX_NESTING = 1 << 30


@canary("actors.writer.payloads.producer_rings", "frames")
def ring_not_copied(producer_rings: Any) -> None:
    """A frame is checked and stored where it stands in a ring, whose producer can change it."""
    read = producer_rings.ProducerRings.read

    def in_place(self: Any, producer: int, span: Any) -> memoryview:
        read(self, producer, span)
        ring = mmap.mmap(self._rings[producer].handle, 0)
        return memoryview(ring)[span.offset : span.offset + span.length]

    producer_rings.ProducerRings.read = in_place


@canary("actors.writer.log_tail", "points")
def wrote_before_bytes(log_end: Any) -> None:
    """`wrote` is published before the frame's bytes are in their place."""
    append = log_end.LogEnd.append

    def publish_first(self: Any, runs: Any, frame: Any, starts: Any, host: bytes) -> Any:
        self._positions.publish("wrote", self.place(runs, starts))
        return append(self, runs, frame, starts, host)

    log_end.LogEnd.append = publish_first


@canary("actors.committer", "points")
def committed_before_copy(committer: Any) -> None:
    """`committed` is published before the pool's bytes are in the segment."""
    copy = committer.Committer._copy

    def publish_first(self: Any, pool: Any, start: int, stop: int) -> None:
        self._positions.publish("committed", stop)
        self._stage.bus.notify("flusher")
        copy(self, pool, start, stop)

    committer.Committer._copy = publish_first


@canary("actors.committer", "kills")
def committed_up_to_a_block(committer: Any) -> None:
    """`committed` is published up to the end of a block, which is in the middle of a record."""
    publish = committer.Committer._publish

    def publish_block(self: Any, end: int) -> None:
        publish(self, max(end, self._copied))

    committer.Committer._publish = publish_block


@canary("shared.queue.fresh_records", "power")
def newest_before_the_disk_has_them(fresh_records: Any) -> None:
    """A consumer at its queue's end is given messages that are not on the disk, where the store
    says that they are."""
    begin = fresh_records.FreshRecords.__init__

    def as_written(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._bound = "wrote"

    fresh_records.FreshRecords.__init__ = as_written


@canary("actors.reput", "points")
def cursor_ahead_of_queue_entries(reput: Any) -> None:
    """`dispatched` is published before the queue entries are written."""
    dispatch = reput.Reput._dispatch

    def publish_first(self: Any, view: memoryview) -> int:
        from penstock.shared.log.reader import whole_records

        end = self._dispatched + whole_records(view, self._dispatched)
        self._positions.publish("dispatched", end)
        return int(dispatch(self, view))

    reput.Reput._dispatch = publish_first


@canary("actors.reput", "points")
def index_cursor_ahead(reput: Any) -> None:
    """`dispatched`, the index's position too, is published before the keys are in the index."""
    put_keys, waiting = reput.Reput._put_keys, []

    def put_those_before(self: Any, keys: Any) -> None:
        for each in waiting:
            put_keys(self, each)
        waiting[:] = [keys]

    def nothing_waits(self: Any) -> bool:
        for each in waiting:
            put_keys(self, each)
        waiting.clear()
        return bool(drained(self))

    drained = reput.Reput.drained
    reput.Reput._put_keys, reput.Reput.drained = put_those_before, nothing_waits


# --- not synced ---


@canary("shared.files.durable", "power")
def directories_not_synced(durable_files: Any) -> None:
    """Files are flushed, the directories that name them are not."""
    durable_files.sync_directory = lambda directory: None


@canary("shared.files.durable", "power")
def segment_names_not_synced(durable_files: Any) -> None:
    """A new log segment's name is not made durable; every other name is."""
    sync = durable_files.sync_directory

    def sync_others(directory: Any) -> None:
        if directory.name != "commitlog":
            sync(directory)

    durable_files.sync_directory = sync_others


@canary("shared.files.durable", "power")
def queue_names_not_synced(durable_files: Any) -> None:
    """A new queue file's name is not made durable; every other name is."""
    sync = durable_files.sync_directory

    def sync_others(directory: Any) -> None:
        if directory.parent.parent.name != "consumequeue":
            sync(directory)

    durable_files.sync_directory = sync_others


@canary("actors.flusher.actor", "power")
def only_last_segment_synced(flusher: Any) -> None:
    """A flush that goes over a segment's end syncs the new segment only."""
    flush_log = flusher.Flusher._flush_log

    def from_last_segment(self: Any) -> int:
        last = self._positions["committed"] - 1
        if last > self._flushed:
            self._flushed = max(self._flushed, last - last % self._segment_bytes)
        return int(flush_log(self))

    flusher.Flusher._flush_log = from_last_segment


@canary("actors.flusher.queue_sync", "power")
def only_last_queue_file_synced(queue_sync: Any) -> None:
    """A sync of a queue that has grown into a new file syncs the new file only."""
    sync_file = queue_sync.ConsumeQueueSync._sync_file

    def only_last(self: Any, slot: int, key: Any, base: int) -> None:
        end = self._table.max_offset(slot) * queue_sync.CQ_ENTRY_BYTES
        if base + self._segment_bytes >= end:
            sync_file(self, slot, key, base)

    queue_sync.ConsumeQueueSync._sync_file = only_last


@canary("actors.flusher.queue_sync", "power")
def queues_passed_over_count_as_synced(queue_sync: Any) -> None:
    """A round that leaves out queues which have grown by little says that all are synced."""
    grown = queue_sync.ConsumeQueueSync._grown

    def complete(self: Any, ends: Any, least_pages: int) -> tuple[list[int], bool]:
        return grown(self, ends, least_pages)[0], True

    queue_sync.ConsumeQueueSync._grown = complete


@canary("actors.flusher.actor", "power")
def last_partial_page_skipped(flusher: Any) -> None:
    """A flush leaves out the last page when it is not full yet."""
    _flush_by_pages(flusher, lambda start, stop: stop - stop % PAGE_BYTES)


@canary("actors.flusher.actor", "power")
def flush_length_not_page_rounded(flusher: Any) -> None:
    """A flush begins at a page, as it must, and its length is still that of the new bytes."""
    _flush_by_pages(flusher, lambda start, stop: stop - start % PAGE_BYTES)


def _flush_by_pages(flusher: Any, last_byte: Callable[[int, int], int]) -> None:
    """Have the log flushed by ranges: from the page of `start` up to what `last_byte` says."""
    flush_log = flusher.Flusher._flush_log

    def by_ranges(self: Any) -> int:
        def sync(handle: int) -> None:
            (segment,) = (each for each in self._segments._open.values() if each.handle == handle)
            start = max(self._flushed - segment.base, 0)
            stop = min(self._positions["committed"] - segment.base, segment.size)
            first = start - start % PAGE_BYTES
            segment.sync(first, max(first, last_byte(start, stop)))

        flusher.sync_file = sync
        return int(flush_log(self))

    flusher.Flusher._flush_log = by_ranges


@canary("actors.flusher.index_sync", "power")
def index_items_not_synced(index_sync: Any) -> None:
    """New items of the index count as synced, and are not."""
    index_sync.IndexSync._sync_items = lambda self, handle, start, stop: iter(())


# --- the checkpoint ahead ---


@canary("shared.store.checkpoint_file", "power")
def checkpoint_ahead_of_queues(checkpoint_file: Any) -> None:
    """The checkpoint names the newest dispatched record when a sync begins, not when it ends."""
    sample = checkpoint_file.CheckpointKeeper.sample_queues

    def count_as_synced(self: Any) -> None:
        sample(self)
        self.queues_are_synced()
        self.write()

    checkpoint_file.CheckpointKeeper.sample_queues = count_as_synced


@canary("shared.store.checkpoint_file", "power")
def checkpoint_ahead_of_log(checkpoint_file: Any) -> None:
    """The checkpoint's time is that of the newest record, flushed or not."""
    sample = checkpoint_file.CheckpointKeeper.sample_log

    def count_as_flushed(self: Any) -> None:
        sample(self)
        stored_ms = self._positions["wrote_timestamp"]
        self._words = checkpoint_file._replace(self._words, physic_timestamp_ms=stored_ms)

    checkpoint_file.CheckpointKeeper.sample_log = count_as_flushed


# --- starts that believe too much ---


@canary("shared.recovery.cut_queues", "power")
def queue_entries_past_log_end_kept(queue_recovery: Any) -> None:
    """A start leaves queue entries of records that the log does not have."""
    queue_recovery._cut = lambda cut, size, again: None


@canary("shared.recovery.recover_log", "power")
def torn_tail_kept(recovery: Any) -> None:
    """A start leaves what stands after the log's end."""
    recovery.cut_log = lambda directory, bases, size, start, end, doubted: 0


@canary("shared.files.durable", "kills")
def files_reused_without_zeroing(durable_files: Any) -> None:
    """A new file is made of the one before it, with the bytes that one had."""
    make_file = durable_files.make_file

    def reuse(staging: Any, target: Any, size: int, *, sparse: bool, head: bytes = b"") -> None:
        before = sorted(path for path in target.parent.iterdir() if path.stat().st_size == size)
        if before:
            head += before[-1].read_bytes()[len(head) :]
        make_file(staging, target, size, sparse=sparse, head=head)

    durable_files.make_file = reuse


@canary("shared.recovery.recover_log", "missing")
def known_queues_not_compared(recovery: Any) -> None:
    """A start does not ask whether a queue that has been dispatched to is still there."""
    recovery.load_known_queues = lambda file: {}


@canary("shared.recovery.recover_log", "damage")
def queue_ends_not_compared(recovery: Any) -> None:
    """A start believes a queue where it ends, however short it has become."""
    recovery.find_lost_queues = lambda store, known, is_exact: {}


@canary("shared.recovery.recover_log", "damage")
def forgotten_queues_not_sought(recovery: Any) -> None:
    """A start believes the list of queues in what it does not say, too."""
    recovery.find_unlisted_queues = lambda *args, **options: {}


@canary("shared.recovery.recover_log", "damage")
def late_queues_not_sought(recovery: Any) -> None:
    """A start believes a queue where it begins: what its first files had nobody is shown."""
    recovery.find_late_queues = lambda *args: {}


@canary("shared.recovery.check_files", "damage")
def files_of_actors_not_looked_at(check_files: Any) -> None:
    """A file that only an actor reads is left to that actor, which dies of it."""
    check_files.load_document = lambda path, decode: None


@canary("shared.memory.run_directory", "damage")
def any_run_directory_believed(run_directory: Any) -> None:
    """Whatever directory run.json names is taken for the last run's, and removed."""
    run_directory._is_of = lambda paths, run: True


@canary("shared.formats.record_check", "damage")
def records_of_no_queue_taken(record_check: Any) -> None:
    """A record whose topic can be no queue's, or whose offset none can have, is a whole one."""
    record_check.names_queue = lambda topic, queue_id, queue_offset: True


@canary("client.core.consumer_core", "damage")
def whole_messages_left_with_a_damaged_one(core: Any) -> None:
    """A consumer waits at the first message of an answer that has one that cannot be read."""
    put_aside = core.ConsumerCore._put_aside

    def at_the_first(self: Any, part: Any, error: Any) -> None:
        return put_aside(self, part._replace(start=1 << 62), error)

    core.ConsumerCore._put_aside = at_the_first


@canary("shared.store.geometry", "damage")
def sizes_not_held_against_files(geometry: Any) -> None:
    """What geometry.json says is believed, though no file has that length."""
    geometry.check_lengths = lambda paths, config: None


@canary("shared.store.deletions", "damage")
def broken_list_of_deletions_believed(deletions: Any) -> None:
    """A cleaner ends over a list of deletions that it cannot read."""

    def read_only(self: Any, paths: Any, say: Any) -> None:
        self._paths, self._tell, self._unwritten = paths, say, False
        self._rows = deletions.load_deletions(paths)

    deletions.Deletions.__init__ = read_only


@canary("actors.allocator.recycled_segments", "points")
def recycled_while_somebody_reads(recycled: Any) -> None:
    """An expired segment is used again, whoever has it open."""
    recycled._is_ours_alone = lambda handle: True


@canary("actors.allocator.recycled_segments", "points")
def recycled_as_it_was(recycled: Any) -> None:
    """An expired segment is used again with the records of its earlier life."""
    recycled._Filling.step = lambda self: True


@canary("shared.recovery.witness", "damage")
def torn_without_a_witness(witness: Any) -> None:
    """What stands after damage is taken for what a power failure has left, whoever was told."""
    witness.Witness.tears = lambda self, position: self.may_be_cut
    witness.Witness.covers = lambda self, position, timestamp_ms: False


@canary("shared.recovery.find_log_end", "damage")
def lost_end_not_missed(log_end: Any) -> None:
    """A log that has lost its end is taken for a shorter one."""
    find_log_end = log_end.find_log_end

    def without_ends(store: Any, config: Any, start: int, bounds: Any, witness: Any) -> Any:
        unknown = witness._replace(flushed=0, told_to=0)
        unbound = log_end.Bounds(most=bounds.most)
        return find_log_end(store, config, start, unbound, unknown)

    log_end.find_log_end = without_ends


@canary("actors.flusher.actor", "power")
def watermark_before_flush(flusher: Any) -> None:
    """The watermark says that what is committed is flushed."""

    def write_committed(self: Any, *, is_last: bool = False) -> int:
        if self._positions["read_only"]:
            return 0
        committed, words = self._positions["committed"], self._checkpoint.durable
        return int(self._mark.write(committed, words, is_last=is_last))

    flusher.Flusher._write_watermark = write_committed


@canary("shared.recovery.empty_pool", "kills")
def pool_not_recovered(pool_recovery: Any) -> None:
    """What a killed run had in its pool is forgotten."""
    empty_pool = pool_recovery.empty_pool

    def without_pool(paths: Any, config: Any, run: Any) -> tuple[int, int]:
        positions = pool_recovery.Positions(run.positions)
        committed = positions["committed"]
        positions.close()
        empty_pool(paths, config, msgspec.structs.replace(run, pool_enabled=False))
        return committed, 0

    pool_recovery.empty_pool = without_pool


@canary("shared.recovery.empty_pool", "recovery")
def pool_counted_before_copied(pool_recovery: Any) -> None:
    """A start takes the pool's bytes for committed before they are in the segments."""
    empty_pool = pool_recovery.empty_pool

    def count_first(paths: Any, config: Any, run: Any) -> tuple[int, int]:
        from penstock.shared.memory.positions import Positions

        positions = Positions(run.positions, owner="supervisor")
        committed, wrote = positions["committed"], positions["wrote"]
        seen = Positions.__getitem__
        positions.initialise("committed", wrote)
        positions.close()

        def as_before(self: Any, name: str) -> int:
            return committed if name == "committed" else seen(self, name)

        Positions.__getitem__ = as_before
        found: tuple[int, int] = empty_pool(paths, config, run)
        Positions.__getitem__ = seen
        return found

    pool_recovery.empty_pool = count_first


@canary("supervisor", "power")
def abort_marker_removed_early(supervisor: Any) -> None:
    """`abort` goes when a stop begins, and not when everything is on disk."""
    stop, close_store = supervisor.Supervisor.stop, supervisor.close_store

    def unlink_first(self: Any) -> bool:
        from penstock.shared.files.durable import delete_file

        delete_file(self.store.paths.abort)
        return bool(stop(self))

    def finish(store: Any, config: Any) -> bool:
        store.paths.abort.touch()
        return bool(close_store(store, config))

    supervisor.Supervisor.stop, supervisor.close_store = unlink_first, finish


@canary("shared.queue.slot_order", "damage")
def slots_for_whoever_comes_last(slot_order: Any) -> None:
    """A record has the slot that it names, whosever that is."""
    take = slot_order.SlotOrder.take

    def always(self: Any, queue: Any, slot: int, record: Any, count: int = 1, room: int = 0) -> Any:
        take(self, queue, slot, record, count)
        for each in (self.left_out, self.overtaken, self.undecided, self._doubted):
            each.clear()
        return None, True

    slot_order.SlotOrder.take = always


# --- after a failure ---


@canary("actors.flusher.actor", "disk")
def flush_tried_again_after_eio(flusher: Any) -> None:
    """The flusher goes on after an error, as if it had not been."""
    flusher.Flusher._fail = lambda self, error: None


@canary("actors.writer.retry_index", "points")
def retries_stored_twice(retry_index: Any) -> None:
    """A frame that is sent again is stored again."""
    retry_index.RetryIndex.find = lambda self, sent: None


@canary("supervisor", "kills")
def generation_check_left_out(supervisor: Any) -> None:
    """A frozen actor gets a successor without being killed, and no actor looks at generations."""
    watch = supervisor.Supervisor._watch

    def replace_only(self: Any, child: Any, now_ms: int) -> None:
        if child.stopped_since_ms and now_ms - child.stopped_since_ms >= 100:
            child.pid, child.stopped_since_ms, child.start_at_ms = 0, 0, now_ms
        else:
            watch(self, child, now_ms)

    supervisor.Supervisor._watch = replace_only
    from penstock.shared.memory.positions import Positions

    beat = Positions.beat

    def always(self: Any, now_ms: int, generation: int) -> bool:
        beat(self, now_ms, generation)
        return True

    Positions.beat = always


@canary("actors.writer.log_tail", "points")
def offsets_from_queues_only(log_end: Any) -> None:
    """A new writer takes queue offsets from the queues, not from the log after them."""
    next_offsets = log_end._next_offsets
    log_end._next_offsets = lambda run, positions, pieces, gone: next_offsets(
        run, positions, lambda start, stop: iter(()), gone
    )


@canary("shared.index.index_file", "kills")
def index_not_cut(index_files: Any) -> None:
    """A new reput puts keys into the index that are there already."""
    index_files.IndexFiles.cut = lambda self, offset, stored_ms: None


@canary("supervisor", "kills")
def descriptor_left_by_each_start(supervisor: Any) -> None:
    """The supervisor opens a file for each actor it starts, and does not close it."""
    start = supervisor.Supervisor._start

    def start_and_open(self: Any, child: Any) -> None:
        start(self, child)
        supervisor.os.open("/dev/null", supervisor.os.O_RDONLY)

    supervisor.Supervisor._start = start_and_open


# --- clocks and crowds ---


@canary("shared.store.retention_clock", "clock")
def retention_believes_the_clock(retention_clock: Any) -> None:
    """What expires goes by the wall clock, whatever it has just done."""
    retention_clock.RetentionClock.now_ms = lambda self: self._clock.now_ms()


@canary("actors.writer.log_tail", "clock")
def store_times_go_back(log_end: Any) -> None:
    """A message's store time is the clock's, also where that is before the last one's."""
    append = log_end.LogEnd.append

    def at_any_time(self: Any, *arguments: Any) -> Any:
        self.stored_ms = 0
        return append(self, *arguments)

    log_end.LogEnd.append = at_any_time


@canary("shared.process.connection_limit", "crowd")
def everybody_is_let_in(door: Any) -> None:
    """Connections are not counted: they come until there are no files left."""
    door.ConnectionLimit.tend = lambda self, now_ms: None


@canary("shared.wire.unread_answers", "crowd")
def unread_answers_are_forgotten(unsent: Any) -> None:
    """What consumers have not read is not counted."""
    unsent.UnreadAnswers.add = lambda self, tracker, size: None


@canary("actors.flusher.actor", "memory")
def no_memory_is_a_failed_disk(flusher: Any) -> None:
    """A flusher that cannot map a segment takes that for an error of the disk."""
    flusher.RESOURCE_EXHAUSTED = frozenset()


# --- clients that mean harm ---


@canary("actors.writer.retry_index", "attack")
def retries_by_key_alone(retry_index: Any) -> None:
    """A retry is taken for stored where any message has its key."""
    retry_index.sent_part = retry_index.unique_key_of


@canary("actors.writer.retry_index", "attack")
def offsets_believed(retry_index: Any) -> None:
    """The log is looked through from where a client says that a record begins."""
    retry_index.RetryIndex._known_before = lambda self, position: position


@canary("shared.process.inlet", "attack")
def parts_without_end(inlet: Any) -> None:
    """All parts of a message are taken, however many there are."""
    inlet.MOST_PARTS = 1 << 60


@canary("shared.process.malloc_tuning", "attack")
def memory_kept(memory_allocator: Any) -> None:
    """What a flood has left free in the heaps stays there."""
    memory_allocator.Heaps.give_back = lambda self: False


@canary("shared.process.inflow", "attack")
def inflow_not_watched(inflow: Any) -> None:
    """Nobody watches what clients send that never becomes a request."""
    inflow.Inflow.look = lambda self, drained, held_bytes: False


@canary("actors.writer.retries", "attack")
def retries_looked_for_in_one_turn(retries: Any) -> None:
    """A retry is looked for in one go, however much of the log that is, and nobody is served
    meanwhile."""
    look = retries.Retries._look

    def in_one_go(self: Any, frame: Any, stored_after: int) -> Any:
        *_, stored = look(self, frame, stored_after)
        yield stored

    retries.Retries._look = in_one_go


@canary("actors.reader.filtered_pulls", "attack")
def filters_looked_through_in_one_turn(filtered_pulls: Any) -> None:
    """A pull with a filter looks through all that is there, and nobody is served meanwhile."""
    filtered_pulls.LOOKS_AT_ONCE = 1 << 60
    filtered_pulls.FilteredPulls._has_time = lambda self: True


@canary("shared.index.query_turns", "attack")
def queries_answered_in_one_turn(query_turns: Any) -> None:
    """A query looks at all that may have its key, and nobody is served meanwhile."""
    query_turns.TURN_MS = 1 << 60


@canary("actors.reader.filter_turns", "attack")
def long_filters_read_at_once(filter_turns: Any) -> None:
    """A filter is read when it comes, however long that takes and however many come."""
    filter_turns.FilterTurns.has_to_wait = lambda self, peer, pull: False


@canary("actors.writer.exact_offsets", "exactly")
def offsets_never_compared(exact_offsets: Any) -> None:
    """The writer stores a block wherever the offsets of its inputs are."""
    exact_offsets.ExactOffsets.check = lambda self, move: None


@canary("actors.writer.exact_offsets", "exactly")
def offsets_forgotten(exact_offsets: Any) -> None:
    """A new writer compares with nothing, for it has not read what the one before knew."""

    def compare_known(self: Any, move: Any, real: Any = exact_offsets.ExactOffsets.check) -> None:
        if move.group in self._offsets:
            real(self, move)

    exact_offsets.ExactOffsets.begin = lambda self, next_offset: None
    exact_offsets.ExactOffsets.check = compare_known


@canary("client.groups.exactly_once", "exactly")
def taken_back_and_sent_all_the_same(exactly_once: Any) -> None:
    """A block on its way is refused, and what was read after it counts although it comes again."""
    real = exactly_once.ExactlyOnce._go_on

    def go_on(self: Any, left: Any) -> None:
        real(self, left)
        self._is_void = False

    exactly_once.ExactlyOnce._go_on = go_on


@canary("actors.coordinator.group_files", "points")
def groups_answered_before_the_journal(group_files: Any) -> None:
    """What a group's members are told is in the journal only with the change after it."""
    write = group_files.GroupFiles.write_down

    def write_later(self: Any, entries: Any) -> None:
        late, self.late = getattr(self, "late", []), [*entries]
        write(self, late)

    group_files.GroupFiles.write_down = write_later


@canary("actors.coordinator.log_offsets", "points")
def queues_given_where_the_log_is_not(log_offsets: Any) -> None:
    """What was acknowledged without blocks is not said to the log before a queue is given."""
    log_offsets.LogOffsets._passed = lambda self, group, topic, queue_ids: {}


@canary("actors.transactions.half_table", "transactions")
def every_word_counts(half_table: Any) -> None:
    """What has ended is open again, so a second word stores a second message."""
    half_table.HalfTable.finish = lambda self, offset, state: False


@canary("actors.transactions.follower", "transactions")
def marks_not_read(follower: Any) -> None:
    """A new transactions actor takes words before it knows what the one before has ended."""
    follower.Follower.follow = lambda self: self.extend() or 0
    follower.Follower.is_at_end = lambda self: True


@canary("actors.transactions.checks", "transactions")
def nobody_asked(checks: Any) -> None:
    """A half message whose program has died is never asked for."""
    checks.Checks.turn = lambda self: 0


@canary("actors.writer.topic_admin", "points")
def deletion_not_noted_first(topic_admin: Any) -> None:
    """A topic goes before it is written down that it was deleted."""
    save = topic_admin.save_deleted_topics

    def save_done(file: Any, deleted: Any) -> None:
        rows = tuple(row for row in deleted.rows if row.is_done)
        save(file, msgspec.structs.replace(deleted, rows=rows))

    topic_admin.save_deleted_topics = save_done


@canary("actors.scheduler.actor", "points")
def delayed_sent_as_new_after_a_death(actor: Any) -> None:
    """A scheduler sends as new what its predecessor may have sent."""
    actor.Scheduler._doubt = lambda self, progress: actor.NO_DOUBT


@canary("actors.scheduler.timers", "points")
def timers_a_moment_early(timers: Any) -> None:
    """Timers go by a clock that is fast."""
    turn = timers.Timers.turn
    timers.Timers.turn = lambda self, now_ms, recalled: turn(self, now_ms + 50, recalled)


@canary("actors.scheduler.timers", "points")
def recalls_not_waited_for(timers: Any) -> None:
    """What is due is taken though a recall that was answered is not read yet."""
    timers.Timers._may_take = lambda self, now_ms, recalled: now_ms


@canary("actors.writer.system_records", "delays")
def recalls_not_announced(system_records: Any) -> None:
    """A recall is stored without a word to the scheduler that one comes."""
    system_records.RECALL_COMING = 0


@canary("actors.coordinator.claims", "members")
def queues_given_to_whoever_asks(claims: Any) -> None:
    """A queue is given to a member while another one has it."""
    claim = claims.Claims.claim

    def take(
        self: Any, group: str, client: str, queue: Any, offset: int = -1, now_ms: int = -1
    ) -> Any:
        seat = self.seat(group, queue)
        if seat is not None and seat.owner and seat.owner != client:
            self._free(group, seat.owner, queue, seat, now_ms)
        return claim(self, group, client, queue, offset, now_ms)

    claims.Claims.claim = take


@canary("actors.coordinator.claims", "members")
def epochs_of_commits_not_compared(claims: Any) -> None:
    """Whoever has had a queue may set its offset."""
    commit = claims.Claims.commit

    def believe(
        self: Any, group: str, client: str, queue: Any, offset: int, epoch: int, number: int
    ) -> Any:
        seat = self.seat(group, queue)
        if seat is not None:
            client, epoch, number = seat.owner, seat.epoch, seat.number
        return commit(self, group, client, queue, offset, epoch, number)

    claims.Claims.commit = believe


@canary("actors.coordinator.connections", "members")
def ended_connections_not_noticed(connections: Any) -> None:
    """A member that was killed is one until the end of its session."""
    connections.Connections.ended = lambda self, now_ms: []
