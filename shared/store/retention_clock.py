"""The time that retention goes by: the wall clock, unless it has just jumped.

A clock that is set from 1970 to today, or ten years ahead by mistake, makes everything look
expired, and what is deleted stays deleted when the clock is right again. So after a jump nothing
goes for its age until the time that segments are reserved has passed again, on a clock that cannot
jump. By then all that was there before has had its time, whatever the wall clock says.

A jump is a change of the wall clock against the monotonic one. Across a boot, where that begins
again, it is a newest message from the future, or from before the reserved time. What was seen last
stands in penstock/retention.json: a restart is no way round it. Deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.shared.clock import Clock
from penstock.shared.files.durable import replace_file
from penstock.shared.memory.run_directory import boot_id

# What a clock is corrected by, or drifts, in the ordinary course of things. Summer time is no jump:
# it moves the local hour, and not the time that is counted from 1970.
JUMP_MS = 3_600_000
# What a request to clean says of its sender, who has looked at the clock: it is right, whatever it
# did before.
TRUST_CLOCK = b"trust-clock"


class _Seen(msgspec.Struct):
    """`ahead_ms`: wall clock less monotonic clock. `kept_until_ms`: monotonic; 0: nothing is.

    Both mean something in the boot of `boot_id` alone, because the monotonic clock begins there.
    """

    boot_id: str
    ahead_ms: int
    kept_until_ms: int


class RetentionClock:
    """The cleaner's. `newest_ms` is the store time of the newest message, 0 without one.

    `reserved_ms` is how long a segment is kept; with 0 nothing is protected, a jump is only noted.
    `say` gets a line when waiting begins, and one when the file cannot be written.
    """

    def __init__(
        self, file: Path, clock: Clock, reserved_ms: int, newest_ms: int, say: Callable[[str], None]
    ) -> None:
        self._file = file
        self._clock = clock
        self._reserved_ms = reserved_ms
        self._report = say
        boot, ahead_ms = boot_id(), self._ahead_ms()
        last = _load(file)
        # The monotonic clock has gone on since then. So a jump while no broker ran is a change of
        # `ahead_ms`, and the next look sees it like any other.
        if last is not None and last.boot_id == boot:
            self._seen = last
            return
        self._seen = _Seen(boot, ahead_ms, 0)
        quiet_ms = clock.now_ms() - newest_ms if newest_ms else 0
        # Of a wait that the boot has interrupted nobody knows what is left, so all of it begins
        # again. Messages stored meanwhile carry the doubted time, and prove nothing.
        kept = last is not None and last.kept_until_ms
        # A store that was off for longer than it keeps things looks like a clock that is ahead. It
        # waits, too: that costs disk, and the other mistake costs messages.
        if kept or quiet_ms < -JUMP_MS or quiet_ms > max(reserved_ms, JUMP_MS):
            self._keep(f"the newest message is {quiet_ms // 1000} s old by this clock")
        else:
            self._save()

    def now_ms(self) -> int:
        """Wall time; 0, at which nothing has expired, while it is not to be believed.

        It has to be asked regularly, and not only when something may go: that is how a jump is
        noticed when it comes, and the wait begins.
        """
        # Compared with the last jump or the boot's first start, and not with the last look:
        # corrections that add up to an hour are a jump, too.
        jump_ms = self._ahead_ms() - self._seen.ahead_ms
        if abs(jump_ms) > JUMP_MS:
            # a jump back is the next jump, and the time begins once more
            self._seen.ahead_ms += jump_ms
            self._keep(f"the clock has jumped by {jump_ms // 1000} s")
        if self._seen.kept_until_ms:
            if self._clock.monotonic_ms() < self._seen.kept_until_ms:
                return 0
            self._seen.kept_until_ms = 0
            # else a boot would find a wait in the file, and begin it again
            self._save()
        return self._clock.now_ms()

    def _ahead_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()

    def _keep(self, why: str) -> None:
        if self._reserved_ms:
            self._seen.kept_until_ms = self._clock.monotonic_ms() + self._reserved_ms
            self._report(f"{why}; for {self._reserved_ms // 3_600_000} h nothing goes for its age")
        self._save()

    def _save(self) -> None:
        try:
            replace_file(self._file, msgspec.json.encode(self._seen))
        except OSError as error:  # it is known as long as this process lives
            self._report(f"{self._file} cannot be written: {error}")


def held_ms(file: Path, clock: Clock) -> int:
    """How long nothing goes for its age, in ms, as a running broker's file says; 0 where the clock
    is believed.

    For other processes: in one boot the monotonic clock is the same for all. Of an earlier boot
    the file says nothing, the next start decides.
    """
    seen = _load(file)
    if seen is None or seen.boot_id != boot_id():
        return 0
    return max(0, seen.kept_until_ms - clock.monotonic_ms())


_decoder: msgspec.json.Decoder[_Seen] = msgspec.json.Decoder(_Seen)


def _load(file: Path) -> _Seen | None:
    try:
        return _decoder.decode(file.read_bytes())
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return None  # nothing is known then, which is what a first start knows
