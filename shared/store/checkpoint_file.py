"""Keeps the checkpoint file: up to when, and up to which record, everything is known to be on disk.

Only the flusher uses it. A time may go into the checkpoint only when every record up to that time
is on disk. So a time is sampled together with the position it belongs to, before that position is
flushed. `confirm_offset` is the start of a record that is on disk together with its consume queue
entry and keys: the next start begins its scan there, and checks by the record that the place is
right.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file, sync_file, write_at
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.formats.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, store_timestamp_ms
from penstock.shared.layout import PAGE_BYTES
from penstock.shared.memory.positions import Positions


def load_checkpoint(file: Path) -> Checkpoint:
    """The checkpoint of a store; all zero where there is none, or one that is too short.

    Zeros are the safe answer: they make the next start look through the whole log. Raises OSError.
    """
    try:
        return decode_checkpoint(read_file(file))
    except FileNotFoundError:
        return Checkpoint()


def make_checkpoint(file: Path, believed: Checkpoint) -> None:
    """Write the words that a start believes, unless a file of full length already has them.

    For a start, while no actor runs. It does not believe every word that it finds: a checkpoint may
    be an older copy. Raises OSError.
    """
    # The keeper writes in place. In a page that exists in full this needs no new block, so a full
    # disk fails the start and not the flusher.
    whole = file.exists() and file.stat().st_size >= PAGE_BYTES
    if not whole or load_checkpoint(file) != believed:
        replace_file(file, encode_checkpoint(believed))


class CheckpointKeeper:
    """The checkpoint's words and the file they are in. A start has made the file.

    A sample goes through three states: it is taken, what it belongs to reaches the disk, and only
    then does it enter the words. `write` puts them into the file. For one thread. Raises OSError
    where the file is missing.
    """

    def __init__(
        self, file: Path, positions: Positions, segments: MappedFileQueue, durable: Checkpoint
    ) -> None:
        """`durable` are words that are known to be on disk: those in the watermark."""
        self._positions = positions
        self._segments = segments
        # ms, and the log offset up to which the log has to be flushed before the time counts
        self._log_sample = (0, 0)
        self._queue_record = 0
        # a record whose entry is on disk, while the record itself may not be; -1: there is none
        self._synced_record = -1
        self._sampled = False
        self._words = load_checkpoint(file)
        # equal to no checkpoint: the predecessor may have died between write and sync, so even the
        # same words are written and synced once more
        self._written = Checkpoint(-1)
        self.durable = durable
        self._handle = os.open(file, os.O_RDWR)

    def sample_log(self) -> None:
        """Note the time of the newest record, and the offset up to which it needs the log flushed.

        Call it before the log is flushed.
        """
        # A sample that still waits is kept. Under load the log is never flushed as far as it was
        # just written, so a sample that is replaced at each call would never count.
        if self._log_sample[1] <= self._positions["flushed"]:
            self._take_log_sample()
            timestamp_ms = self._positions["wrote_timestamp"]
            # The time is read first. The writer stores `wrote` before the time, so `wrote` now
            # covers the record of that time. In the other order it might not.
            self._log_sample = (timestamp_ms, self._positions["wrote"])

    def _take_log_sample(self) -> None:
        if self._log_sample[0] and self._log_sample[1] <= self._positions["flushed"]:
            self._words = _replace(self._words, physic_timestamp_ms=self._log_sample[0])

    def sample_queues(self) -> None:
        """Note the last dispatched record; a sync of the queues that begins now covers it."""
        # The record is read first, and once. The reput moves it before it moves `dispatched`, so if
        # `dispatched` is past this record, the record was dispatched. If a reput dies between the
        # two, its successor dispatches the record that it named again.
        self._queue_record = self._positions["dispatched_record"]
        self._sampled = self._positions["dispatched"] > self._queue_record

    def queues_are_synced(self) -> None:
        """Every queue is now on disk at least as far as when `sample_queues` was called."""
        # the last chance for the previous round's record, which may be replaced below
        self.log_has_followed()
        if self._sampled:
            self._synced_record = self._queue_record

    def index_is_synced(self, full_ms: int) -> None:
        """Index files up to this time, in ms, are full and on disk: RocketMQ keeps them after a
        crash.

        It deletes the files that end later, so the newest file, which still grows, never counts.
        """
        # not greater if no file has become full since: 0, or the same as before
        if full_ms > self._words.index_timestamp_ms:
            self._words = _replace(self._words, index_timestamp_ms=full_ms)

    def _take_queue_sample(self) -> bool:
        """Note the record up to which queues are on disk. Returns whether that was possible.

        With async flushing the queues are ahead of the log. The record itself must be on disk, and
        the log's time must cover it: otherwise the next start would not believe it.
        """
        record = self._synced_record
        # `flushed` is never inside a record: one that begins before it is entirely on disk
        if not 0 <= record < self._positions["flushed"]:
            return False
        stored_ms = store_timestamp_ms(
            self._segments.view(record, record + SMALLEST_RECORD_BYTES), 0
        )
        if stored_ms > self._words.physic_timestamp_ms:
            return False
        # both words change together: a start checks that the record has the right time
        self._words = _replace(self._words, logics_timestamp_ms=stored_ms, confirm_offset=record)
        self._synced_record = -1
        return True

    def log_has_followed(self) -> bool:
        """Whether the log has reached the disk as far as the queues: then it is time to write."""
        self._take_log_sample()
        return self._take_queue_sample()

    def write(self) -> None:
        """Write the words if they have changed; durable on return.

        Raises FlushFailed where the sync fails, and the caller must not try again; OSError.
        """
        self._take_log_sample()
        self._take_queue_sample()
        if self._words != self._written:
            crash_point("ckpt.before")
            write_at(self._handle, encode_checkpoint(self._words), 0)
            crash_point("ckpt.mid")
            sync_file(self._handle)
            crash_point("ckpt.after")
            # only now, because the watermark repeats what is durable, not what was only written
            self._written = self.durable = self._words

    def close(self) -> None:
        """Close the file. Words that were not written are lost: a stop calls `write` first."""
        os.close(self._handle)


def _replace(words: Checkpoint, **changes: int) -> Checkpoint:
    return Checkpoint(**{**{f: getattr(words, f) for f in words.__struct_fields__}, **changes})
