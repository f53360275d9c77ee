"""The files of groups: the journal, which every change goes into, and RocketMQ's two.

    change -> write_down()      in the journal, in one call; only then is it answered
    every 5 s, if changed       Saving in the journal -> consumerOffset.json -> a new journal
    settings of a group         subscriptionGroup.json, once for all of a turn, before any of them
                                is answered

The journal lives in the page cache: it outlives every process. After a power failure the groups are
where consumerOffset.json says. After a crash between two of these steps the journal names the
offsets' file, so both count. A file that the journal does not name was written by another broker,
and counts alone.

If the disk refuses, nothing is answered that is not written down, and writing is tried again and
again. It does not know sockets, nor what a claim is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from penstock.shared.errors import StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.process.actor import Stage
from penstock.shared.process.retry import Retry
from penstock.shared.progress.consumer_offsets import ConsumerOffsets, GroupOffsets, digest_of
from penstock.shared.progress.group_journal import (
    Entry,
    Head,
    Saving,
    decode_journal,
    encode_blocks,
    encode_journal,
)
from penstock.shared.progress.subscription_groups import SubscriptionGroups
from penstock.shared.store.rocketmq_json import load_document, save_document
from penstock.shared.store.transaction_progress import (
    TransactionProgress,
    load_transaction_progress,
)

# A journal that has grown by this is replaced even before its time; one that has grown by twice as
# much takes no changes. What it began with does not count: a new one would begin with as much.
FULL_JOURNAL_BYTES = 16 << 20
# A group that its first member made comes into its file this late at most.
SAVE_GROUPS_MS = 1000


class GroupFiles:
    """The files, for the one process that owns them."""

    def __init__(self, stage: Stage) -> None:
        self._paths = StorePaths(stage.config.store)
        self._clock, self._disk, self._report = stage.clock, stage.disk, stage.report
        self._positions = stage.positions
        self._every_ms = stage.config.flush_consumer_offset_interval_ms
        self._retry = Retry(stage.clock)
        self._handle = -1
        self._size = self._began_with = 0
        self._broken = False
        # when it was first changed after the last save; -1 if it was not
        self._changed_ms = -1
        self._groups_changed_ms = -1
        # whether a caller waits for the groups' file; and the file as last saved
        self._groups_awaited = False
        self._saved_groups = b""
        self._file_digest = ""
        # how far half messages were checked, which the offsets' file has too
        self._transactions: TransactionProgress | None = None
        self._looked_ms = 0

    def load(self) -> tuple[ConsumerOffsets, list[Entry]]:
        """The offsets' file, and the later changes in the journal. Raises StoreDamaged, OSError.

        If another broker has written the file since, only the journal's next epoch counts.
        """
        self.groups = load_document(self._paths.subscription_groups, SubscriptionGroups)
        self._offsets = load_document(self._paths.consumer_offsets, ConsumerOffsets)
        raw = b""
        with suppress(FileNotFoundError):
            raw = read_file(self._paths.group_journal)
        entries, good = decode_journal(raw)
        if good < len(raw):
            self._report(
                f"{len(raw) - good} bytes at the end of {self._paths.group_journal} are no whole "
                "block: a crash has cut it short"
            )
        known = {each.digest for each in entries if isinstance(each, Saving)}
        head = next((each for each in entries if isinstance(each, Head)), None)
        if head is not None and self._offsets.digest not in known.union(head.digests):
            self._report(
                "config/consumerOffset.json is not the one that was saved here last: another "
                "broker has used the store, or somebody has restored it; it counts"
            )
            entries = [head]
        self._file_digest = self._offsets.digest
        return self._offsets, entries

    # --- the journal ---

    @property
    def refuses(self) -> StoreUnavailable | None:
        """Why no change is accepted now; None if one is."""
        if not self._broken and self._grown < 2 * FULL_JOURNAL_BYTES:
            return None
        return StoreUnavailable(
            "what groups do cannot be written into their journal",
            os.strerror(error) if (error := self._positions["group_error"]) else "it is full",
            "look at the disk, then try again: penstock status",
        )

    @property
    def _grown(self) -> int:
        """Bytes that were added to the journal since it began."""
        return self._size - self._began_with

    def write_down(self, entries: Sequence[Entry]) -> None:
        """Append changes to the journal, where a kill of this process cannot lose them.

        Raises StoreUnavailable; then all must be saved before a change is accepted again.
        """
        if not entries:
            return
        block = encode_blocks(entries)
        if self._changed_ms < 0:
            self._changed_ms = self._clock.monotonic_ms()
        crash_point("group.before_journal")
        try:
            self._append(block)
        except OSError as error:
            self._fail(error)
            self._broken = True
            refused = self.refuses
            assert refused is not None
            raise refused from None
        crash_point("group.journaled")

    def _append(self, block: bytes) -> None:
        """Append all of it, or nothing. Raises OSError."""
        done = 0
        try:
            done = os.write(self._handle, block)
            if done < len(block):
                raise OSError(errno.ENOSPC, "the disk takes a part of it only")
        except OSError:
            if done:  # nothing after a partial block would ever be read
                os.ftruncate(self._handle, self._size)
            raise
        self._size += len(block)

    def _fail(self, error: OSError) -> None:
        if not self._positions["group_error"]:
            self._report(f"the files of groups cannot be written: {error}; trying again")
        self._positions.publish("group_error", error.errno or 1)
        self._retry.put_off()

    # --- saving ---

    def note_groups(self, awaited: bool = False) -> None:
        """`groups` has changed: it is saved soon, or by the next `save_awaited`."""
        self._groups_awaited |= awaited
        if self._groups_changed_ms < 0:
            self._groups_changed_ms = self._clock.monotonic_ms()

    def save_awaited(self) -> None:
        """Make durable what a caller waits for. Raises StoreUnavailable; it tries again later."""
        if self._groups_awaited:
            self._groups_awaited = False
            self._save_groups()

    def _save_groups(self) -> None:
        content, before = self.groups.encode(), self._saved_groups
        try:
            with self._disk:
                save_document(self._paths.subscription_groups, content, before)
        except OSError as error:
            self._fail(error)
            raise StoreUnavailable(
                "config/subscriptionGroup.json cannot be written",
                error,
                "look at the disk, then try again: penstock status",
            ) from None
        self._groups_changed_ms, self._saved_groups = -1, content

    def due(self) -> bool:
        """Whether it is time to save."""
        if self._retry.waits:
            return False
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._looked_ms + self._every_ms:
            self._look_at_transactions(now_ms)
        return (
            # what was refused may be saved by now, or was another coordinator's: a save tells so
            self._positions["group_error"] > 0
            or self._grown > FULL_JOURNAL_BYTES
            or 0 <= self._changed_ms <= now_ms - self._every_ms
            or 0 <= self._groups_changed_ms <= now_ms - SAVE_GROUPS_MS
        )

    def _look_at_transactions(self, now_ms: int) -> None:
        """The transactions' actor records in a file of its own how far it is."""
        self._looked_ms = now_ms
        is_known = load_transaction_progress(self._paths.transactions) == self._transactions
        if not is_known and self._changed_ms < 0:
            self._changed_ms = now_ms

    def save(
        self, offsets: Callable[[], GroupOffsets], head: Head, rest: Callable[[], Iterable[Entry]]
    ) -> None:
        """Save changes: `offsets`, and a new journal with the `rest`, which has no place in the
        offsets' file. This fills in the head's digests. Errors are noted, not raised.
        """
        self._look_at_transactions(self._clock.monotonic_ms())
        try:
            if self._groups_changed_ms >= 0:
                self._save_groups()
            if self._changed_ms >= 0 or self._broken:
                with self._disk:
                    self._save_offsets(offsets())
                    self._new_journal(head, rest())
        except StoreUnavailable:
            return  # noted where it was raised
        except OSError as error:
            self._fail(error)
            return
        self._positions.publish("group_error", 0)
        self._retry.succeeded()

    def _save_offsets(self, offsets: GroupOffsets) -> None:
        self._transactions = load_transaction_progress(self._paths.transactions)
        if self._transactions is not None:
            offsets = self._transactions.merged(offsets)
        self._offsets.replace(offsets, self._clock.now_ms())
        content = self._offsets.encode()
        self._append(encode_blocks([Saving(digest_of(content))]))
        crash_point("group.noted")
        save_document(self._paths.consumer_offsets, content)
        crash_point("group.saved")

    def begin(self, head: Head, rest: Iterable[Entry]) -> None:
        """Begin a journal of this process alone: a predecessor still alive writes to the old file.

        Raises OSError.
        """
        with self._disk:
            self._new_journal(head, rest)

    def _new_journal(self, head: Head, rest: Iterable[Entry]) -> None:
        head = replace(head, digests=(self._offsets.digest, self._file_digest))
        content = encode_journal(head, list(rest))
        replace_file(self._paths.group_journal, content)
        handle = os.open(self._paths.group_journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.close()
        self._handle, self._size = handle, len(content)
        self._began_with = self._size
        self._file_digest = self._offsets.digest
        self._broken, self._changed_ms = False, -1

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
