"""Start-up: makes consume queues that have lost their end again from the log, before they are used.

Only a queue's files say where it ends, and by that which offset its next message gets. If a file is
deleted, emptied, zeroed, or replaced by an older copy, the queue ends earlier and looks as whole as
ever. So it is compared with penstock/queues, the list of known ends. A queue is made again from the
whole log if it is shorter than the list says, or names another record at its known end; if it is
longer, in a store that was left clean; or if one of its files does not begin and end with entries
in log order. The others stay as they are.

Where the list says nothing of a queue's end, the log does: the queue's last entries must lead to
its own messages, and after the last of them the log may have none but those that the reput will
come to (`find_unlisted_queues`). The list still names the old end while a queue is made again, so
if a start dies, the next one does it again.

No list says where a queue begins, because that moves whenever messages expire. Its files and the
log say it (`find_late_queues`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import exchange, make_directory, sync_directory, sync_tree
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths
from penstock.shared.loops.active import QueueNumbers, by_queue
from penstock.shared.messaging.system_topics import QUEUES
from penstock.shared.names import LIGHT_QUEUE_PREFIX, is_stored_topic
from penstock.shared.queue.deleted_topics import load_living_queues
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.recovery.build_queues import Queue, QueueBuilder, log_runs, remove_rebuild
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.topics import load_topics

Lost = dict[Queue, tuple[QueueEnd, str]]  # where each ended, and what is wrong

# Where the list says nothing of a queue's end, this many of its last entries are looked up in the
# log.
_LOOKED_UP = 4


def restore_queues(store: StoreDirectory, config: Config, lost: Lost, log_end: int) -> list[str]:
    """Make lost queues again. Returns what was wrong with each, in words. Durable on return.

    The new queues grow next to the old ones and change places with them one by one. The list still
    says what is lost, so if this start dies, the next one finds some of them whole and makes the
    others. `log_end` is where the log ends at the latest. No reput may run. Raises OSError.
    """
    if not lost:
        return []
    paths = store.paths
    remove_rebuild(paths)
    new = StorePaths(paths.rebuild)
    for directory in (new.consume_queue, new.staging):
        make_directory(directory)
    # One pass over the whole log for all of them: a lost queue can have a message anywhere in it.
    builder = QueueBuilder(store, new, config, lost, log_end)
    builder.build()
    files_hold = config.mapped_file_size_consume_queue_bytes // CQ_ENTRY_BYTES
    for queue, (end, _) in lost.items():
        # a queue that ended earlier would give its next message an offset that another had
        builder.reach(queue, end, files_hold)
    builder.close()
    # They are synced before any of them gets its name: a name must not lead to bytes that a power
    # failure takes back.
    sync_tree(new.consume_queue)
    crash_point("recover.queues_made")
    for topic, queue_id in lost:
        _put_in_place(paths.queue(topic.decode(), queue_id), new.queue(topic.decode(), queue_id))
        crash_point("recover.queue_restored")
    remove_rebuild(paths)
    store.refresh()
    return [
        f"queue {topic.decode()}/{queue_id} {why}: made again from the log, up to "
        f"{builder.ends.get((topic, queue_id), 0)}"
        for (topic, queue_id), (_, why) in lost.items()
    ]


def find_lost_queues(
    store: StoreDirectory, known: Mapping[str, QueueEnd], *, is_exact: bool
) -> Lost:
    """Queues that are not as they are known to have been.

    `is_exact` says that nobody has written to the store since their ends were noted. Only then does
    a queue that is longer than known count as lost; otherwise it has gone on. Reads near the ends
    of files of queues, and of the log only what those entries name.
    """
    lost: Lost = {}
    gone = set(known)
    for queue in store.queues():
        name = f"{queue.topic}/{queue.queue_id}"
        if queue.segments:
            # A queue whose directory has no file has no end: it stays in `gone`.
            gone.discard(name)
            end = known.get(name, QueueEnd())
            why = _why_lost(store, queue, end, is_exact=is_exact)
            if why:
                lost[queue.topic.encode(), queue.queue_id] = end, why
    # The checkpoint vouches for all queues, so what these held would never be dispatched again.
    for name in sorted(gone):
        topic, _, queue_id = name.rpartition("/")
        lost[topic.encode(), int(queue_id)] = known[name], "is gone"
    return lost


def find_missed_queues(store: StoreDirectory) -> dict[str, str]:
    """By name, why a queue is not as the list has it: the next start makes these queues again."""
    # read before the queues are listed: those of a running store grow
    known = load_living_queues(store.paths)
    lost = find_lost_queues(store, known, is_exact=False)
    names = {f"{topic.decode()}/{number}": why for (topic, number), (_, why) in lost.items()}
    return {name: why for name, why in names.items() if name in known}


def find_unlisted_queues(
    store: StoreSurvey,
    known: Collection[str],
    good_to: int,
    gone: Mapping[str, int],
    *,
    whole: bool,
) -> Lost:
    """Queues that the list does not have, and that end before their last message in the log.

    The reput dispatches records from `good_to` on. Records of a deleted topic that begin before its
    end in `gone` do not count. Every start lists all queues, so an unlisted one is new, and the log
    is read only from its last entry on. If the list has lost lines, and is not `whole`, all of the
    log is read, and every queue that a topic has is looked for. Of a topic that config/topics.json
    does not have (that file was harmed, too), it is every queue of which the log has several
    messages.
    """
    ends = {
        (queue.topic.encode(), queue.queue_id): queue
        for queue in store.queues()
        if queue.segments and f"{queue.topic}/{queue.queue_id}" not in known
    }
    topics = load_topics(store.paths.topics)

    def is_one(topic: str, queue_id: int, messages: int) -> bool:
        # a flipped bit in one record's topic or queue id makes no queue
        count = max(topics.read_queues(topic), QUEUES.get(topic, 0))
        counts = queue_id < count or not count and messages > 1 and is_stored_topic(topic)
        return counts and f"{topic}/{queue_id}" not in known

    return _find_short(store, ends, good_to, gone, None if whole else is_one)


def find_doubted_queues(store: StoreSurvey, good_to: int, gone: Mapping[str, int]) -> Lost:
    """Queues that have bytes which are no entry of theirs at the place where they are to be cut for
    the log offset `good_to`, and of which the log has more messages before that offset. The bytes
    may have been an entry of one of these, and the cut would lose it.

    After a power failure they may as well be half an entry, or one of a message that the log has
    lost. So the log is asked, from the queue's last entry on.
    """
    ends = {
        (queue.topic.encode(), queue.queue_id): queue
        for queue in store.queues()
        if queue.segments and _is_doubted(store, queue, good_to)
    }
    return _find_short(store, ends, good_to, gone)


def _find_short(
    store: StoreSurvey,
    ends: Mapping[Queue, QueueFiles],
    good_to: int,
    gone: Mapping[str, int],
    is_one: Callable[[str, int, int], bool] | None = None,
) -> Lost:
    """Which of `ends`, cut at `good_to`, lack messages that the log has before that.

    The log is read from their last entries on. With `is_one` all of it is read, and other queues
    count, too, even without files, if `is_one` says so of topic, queue id and the number of
    messages so far.
    """
    numbers, lost, messages = QueueNumbers(), Lost(), Counter[Queue]()
    start = min([good_to, *(_last_message(store, each, good_to) for each in ends.values())])
    start = store.log_start if is_one else start
    if start >= good_to:
        return lost  # the log may have no segment at that offset
    levels_ms = parse_delay_levels(store.config.message_delay_level)
    for run in log_runs(store, numbers, levels_ms, start, good_to):
        for (topic, queue_id), pieces in by_queue(run.rows, numbers).items():
            name, queue = topic.decode(), ends.get((topic, queue_id))
            if run.start < gone.get(name, 0):
                continue
            if queue is None:
                messages[topic, queue_id] += sum(len(raw) for _, raw in pieces) // CQ_ENTRY_BYTES
                if is_one is None or not is_one(name, queue_id, messages[topic, queue_id]):
                    continue
            end, slot, entries = 0 if queue is None else _end_at(queue, good_to), *pieces[-1]
            if slot + len(entries) // CQ_ENTRY_BYTES > end:
                lost[topic, queue_id] = QueueEnd(), f"ends at {end}, and the log has more of it"
    return lost


def _end_at(queue: QueueFiles, good_to: int) -> int:
    """Where a queue ends once it is cut there. Bytes that are no entry may mislead either search,
    so the lower result counts."""
    return min(queue.end_before(good_to), queue.max_offset)


def _is_doubted(store: StoreDirectory, queue: QueueFiles, good_to: int) -> bool:
    """Whether a queue has something other than an entry of its own where it is to be cut."""
    at = _end_at(queue, good_to)
    return at >= queue.first_slot and queue.is_used(at) and not _goes_on(store, queue, at, good_to)


def _goes_on(store: StoreDirectory, queue: QueueFiles, at: int, good_to: int) -> bool:
    """Whether a slot has the queue's own entry of a record at or past `good_to`, which the reput
    reads again."""
    return not queue.breaks_at(at, good_to) and _is_foreign(store, queue, at) is False


def _last_message(store: StoreDirectory, queue: QueueFiles, good_to: int) -> int:
    """The log offset of the message that the last entry before `good_to` leads to, if that is the
    queue's own; else the log's start."""
    at = _end_at(queue, good_to) - 1
    is_own = at >= queue.first_slot and _is_foreign(store, queue, at) is False
    return queue.log_offset(at) if is_own else store.log_start


def find_late_queues(
    store: StoreSurvey, known: Mapping[str, QueueEnd], good_to: int, gone: Mapping[str, int]
) -> Lost:
    """Queues that begin after a message of theirs that the log still has: their first files are
    gone.

    Penstock's cleaner leaves the file with the newest expired entry. So if a queue's files begin
    past offset 0, and with a message that is still there, it has lost files; or else RocketMQ's
    cleaner, which does not leave that file, has removed one that ended with that entry. The log
    tells which, and is read up to that message; for other queues it is not read. The reput writes
    what is past `good_to` again. Of a deleted topic, nothing before its end in `gone` is missed.
    """
    firsts = {
        (queue.topic.encode(), queue.queue_id): (first, min(queue.log_offset(first), good_to))
        for queue in store.queues()
        if (first := queue.first_slot) and queue.min_offset == first < queue.max_offset
    }
    numbers, lost = QueueNumbers(), Lost()
    if not firsts:
        return lost
    levels_ms = parse_delay_levels(store.config.message_delay_level)
    last = max(stop for _, stop in firsts.values())
    for run in log_runs(store, numbers, levels_ms, store.log_start, last):
        for key, pieces in by_queue(run.rows, numbers).items():
            if key not in firsts or key in lost:
                continue
            (first, stop), name = firsts[key], key[0].decode()
            counts = range(gone.get(name, 0), stop)
            slots = [slot for slot, raw in pieces if ENTRY.unpack_from(raw)[0] in counts]
            if slots and min(slots) < first:
                why = f"begins at {first}, and the log has {min(slots)} of it"
                lost[key] = known.get(f"{name}/{key[1]}", QueueEnd()), why
    return lost


def find_broken_queues(store: StoreDirectory, known: Mapping[str, QueueEnd], good_to: int) -> Lost:
    """Queues of which a cut at the log offset `good_to` would take entries before their known end
    that are not dispatched again: where bisection ends in them, there is no real entry."""
    lost: Lost = {}
    for queue in store.queues():
        end = known.get(f"{queue.topic}/{queue.queue_id}", QueueEnd())
        at = _end_at(queue, good_to) if queue.segments else 0
        if not queue.first_slot <= at < end.end:
            continue
        is_before = end.last_position != UNKNOWN and end.last_position < good_to
        if is_before or not _goes_on(store, queue, at, good_to):
            why = f"has bytes at {at} that are no entry"
            lost[queue.topic.encode(), queue.queue_id] = end, why
    return lost


def _why_lost(store: StoreDirectory, queue: QueueFiles, known: QueueEnd, *, is_exact: bool) -> str:
    """What is wrong with a queue's files, in words; "" where nothing is.

    Where the list says something, that decides. The log is asked only about an end of which the
    list says nothing, because that costs reads of the log for each queue.
    """
    if any(before.end != after.base for before, after in pairwise(queue.segments)):
        return "has no file in its midst"
    if not known.end:  # nobody has noted it, or the list was harmed
        return _why_misled(store, queue)
    try:
        if queue.max_offset < known.end:
            return f"ends at {queue.max_offset}, where {known.end} is known"
        position = queue.log_offset(known.end - 1)
        # An older copy that has grown again, or another queue's file, may be long enough: only what
        # the last entry names gives it away.
        if known.last_position not in (position, UNKNOWN):
            return f"has another message at {known.end - 1} than is known"
        if why := _why_disordered(store, queue, known.end):
            return why
    except (StoreDamaged, OffsetOutOfRange) as error:
        return f"cannot be read ({error})"
    if is_exact and queue.max_offset > known.end:
        return f"ends at {queue.max_offset}, where {known.end} is known"
    return _why_misled(store, queue) if queue.max_offset > known.end else ""


def _why_disordered(store: StoreDirectory, queue: QueueFiles, stop: int) -> str:
    """Why a queue is not in log order below `stop`, in words; "" where it is.

    Up to there entries are known to be on disk. So each file begins and ends with entries that lead
    on in the log, or it was overwritten. Of bad entries inside a file, consumers are told.

    Entries also go back where a topic was made again under its name. Then they are right, and to
    make the queue again would change nothing. So the log has the last word.
    """
    before_slot, before = -1, -1
    for slot, offset, size in queue.edges(stop):
        if size <= 0 or offset < 0:
            return f"has bytes at {slot} that are no entry"
        if size == BLANK_SIZE:
            continue
        if offset < before and any(
            _is_foreign(store, queue, each) is not False for each in (before_slot, slot)
        ):
            return f"goes back in the log at {slot}"
        before_slot, before = slot, offset
    return ""


def _is_foreign(store: StoreDirectory, queue: QueueFiles, slot: int) -> bool | None:
    """Whether an entry leads to a message of another slot or queue; None if to no whole one."""
    try:
        record = store.record_at(queue.log_offset(slot))
    except (StoreDamaged, OffsetOutOfRange):
        return None
    # RocketMQ's light queues lead to records of other topics by design.
    if queue.topic.startswith(LIGHT_QUEUE_PREFIX):
        return False
    named = record.topic, record.queue_id, record.queue_offset
    return named != (queue.topic, queue.queue_id, slot)


def _is_no_entry(store: StoreDirectory, queue: QueueFiles, slot: int) -> bool:
    """Whether what stands at a slot names more than the rest of a segment, as no entry does. One
    that leads past the log's end may be of a record that the log has lost."""
    try:
        ((offset, size, _),) = queue.entries(slot, slot + 1).tolist()
    except (StoreDamaged, OffsetOutOfRange):
        return False
    segment_bytes = store.segments[-1].size if store.segments else 0
    return bool(segment_bytes) and offset % segment_bytes + size > segment_bytes


def _why_misled(store: StoreDirectory, queue: QueueFiles) -> str:
    """Why a queue's end is not its own, in words; "" where it is. If its last entries lead to
    messages of others, files of queues were mixed up. An entry that leads to no whole record may be
    ahead of the log, or its record lost."""
    end, foreign = queue.max_offset, 0
    if not store.is_unclean and _is_no_entry(store, queue, end - 1):
        return f"has bytes at its end, {end}, that are no entry"  # as no broker's stop leaves it
    for slot in range(end - 1, max(queue.first_slot, end - _LOOKED_UP) - 1, -1):
        # an entry whose record is not on disk yet, or is lost, says nothing about the queue
        is_foreign = _is_foreign(store, queue, slot)
        if is_foreign is False:
            break
        foreign += bool(is_foreign)
    # no checksum covers topic, queue id and queue offset: if only one leads to another's message,
    # that record may be what is wrong
    return f"leads to other messages at its end, {end}" if foreign > 1 else ""


def _put_in_place(old: Path, new: Path) -> None:
    """Exchange a new queue for the old one. A queue of which the log has nothing has no new one."""
    if not new.is_dir():
        return
    make_directory(old.parent)
    # An exchange, because a rename cannot replace a directory that has files. The old queue ends up
    # in rebuild/, and is removed with it.
    if old.is_dir():
        exchange(old, new)
    else:
        os.rename(new, old)
        sync_directory(old.parent)
