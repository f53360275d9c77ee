"""Check-back: producers are asked how transactions ended that nobody has ended.

    a pass, each interval, through all open half messages, the oldest first
        asked often enough, or older than the store keeps messages    discarded
        younger than its immunity, or than the timeout                left alone
        a producer of its group is there                              asked, and counted
        else                                                          left alone, not counted
        far before the newest, with few other open ones               put back to the queue's end

RocketMQ puts a half message back at each check, and for each interval of its immunity. Here it
stays where it is: a check writes nothing, and neither an immunity nor an absent producer uses up
checks. It is put back only to bound what is remembered: see half_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.actors.transactions.endings import Ending, Endings
from penstock.actors.transactions.half_queues import HalfQueues
from penstock.actors.transactions.half_table import DISCARDED, PUT_BACK, HalfTable
from penstock.actors.transactions.producers import Producers
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC_BYTES
from penstock.shared.messaging.half import Half, discarded, put_back, read_half
from penstock.shared.messaging.system_topics import HALF_TOPIC
from penstock.shared.names import MAX_PROPERTIES_BYTES

# Half messages to look at in one turn, which takes some ms.
LOOKED_AT_ONCE = 128
# The distance from the oldest open half message to the newest takes a byte each. Beyond this, and
# where fewer than one in FEW is open, the oldest are put back.
MOST_REMEMBERED, FEW = 4 << 20, 4
# Half messages to put back or discard wait for the writer; this many more wait here.
MOST_WAITING = 1024
_HOUR_MS = 3_600_000

# Sends the question to a producer; False if it can no longer be asked.
Question = Callable[[bytes, Record, Half], bool]


class _Found(NamedTuple):
    offset: int
    record: Record
    half: Half


class Checks:
    """The passes, in turns of bounded length."""

    def __init__(
        self,
        table: HalfTable,
        queues: HalfQueues,
        endings: Endings,
        producers: Producers,
        config: Config,
        clock: Clock,
        ask: Question,
    ) -> None:
        self._table, self._queues = table, queues
        self._endings, self._producers = endings, producers
        self._clock, self._ask = clock, ask
        self._interval_ms = config.transaction_check_interval_ms
        self._timeout_ms = config.transaction_time_out_ms
        self._max = config.transaction_check_max
        self._reserved_ms = config.file_reserved_time_h * _HOUR_MS
        self._next_ms = clock.monotonic_ms() + self._interval_ms
        self._pass: Iterator[bool] = iter(())
        self.most_remembered = MOST_REMEMBERED

    def turn(self) -> int:
        """Go on with the pass, or begin the next when due; returns how many were looked at."""
        now_ms = self._clock.monotonic_ms()
        looked = 0
        while looked < LOOKED_AT_ONCE and len(self._endings) < MOST_WAITING:
            if next(self._pass, None) is None:
                if now_ms < self._next_ms:
                    break
                self._next_ms = now_ms + self._interval_ms
                self._producers.drop_silent(now_ms)
                self._pass = self._look(self._clock.now_ms())
            looked += 1
        return looked

    def wait_ms(self) -> int:
        return max(0, self._next_ms - self._clock.monotonic_ms())

    def _look(self, began_ms: int) -> Iterator[bool]:
        """One pass; yields once for each half message that was looked at."""
        for offset in self._table.open_from(self._table.oldest):
            if self._endings.get(offset) is not None:
                continue
            record = self._queues.half(offset)
            if record is None:
                # only an expired one can never be committed: a disk may later read what it
                # cannot read now
                if offset < self._queues.range(HALF_TOPIC)[0]:
                    self._table.finish(offset, DISCARDED)
                yield True
                continue
            if record.store_timestamp_ms >= began_ms:
                return
            try:
                found = _Found(offset, record, read_half(record.properties))
            except InvalidMessage:
                self._endings.put(Ending(offset, DISCARDED, None), record)
                yield True
                continue
            if not self._decide(found, self._clock.now_ms()) and not len(self._producers):
                return  # the others are younger, and there is nobody to ask
            yield True

    def _decide(self, found: _Found, now_ms: int) -> bool:
        """Do what is due for one half message; whether anything was."""
        offset, record, half = found
        # By this clock: a producer's may be a day off. Then its message would be asked for at once,
        # or discarded while its local transaction runs.
        age_ms = now_ms - record.store_timestamp_ms
        # a copy that was put back is stored later than its message: only its birth shows its age
        is_copy = half.first_offset >= 0
        kept_ms = now_ms - record.born_timestamp_ms if is_copy else age_ms
        checks = half.check_times + self._table.state(offset)
        if checks >= self._max or kept_ms > self._reserved_ms:
            self._endings.put(Ending(offset, DISCARDED, discarded(record)), record)
            return True
        limit_ms = half.immunity_s * 1000 if half.immunity_s >= 0 else self._timeout_ms
        # if this clock was set back, its time shows nothing
        is_due = not 0 <= age_ms < limit_ms
        asked = is_due and self._ask_for(found)
        if not self._is_far(offset):
            return asked
        again = put_back(record, half.check_times + self._table.state(offset))
        if len(again.properties) <= MAX_PROPERTIES_BYTES - PROP_CRC_BYTES:
            self._endings.put(Ending(offset, PUT_BACK, again), record)
        return True

    def _ask_for(self, found: _Found) -> bool:
        def send(peer: bytes) -> bool:
            return self._ask(peer, found.record, found.half)

        asked = self._producers.ask(found.half.group, self._clock.monotonic_ms(), send)
        if asked:
            self._table.count_check(found.offset)
        return asked

    def _is_far(self, offset: int) -> bool:
        between = self._table.end - offset
        return between > self.most_remembered and self._table.open * FEW < between
