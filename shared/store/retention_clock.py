"""The time that retention uses: the wall clock, unless it has just jumped.

A clock that is set from 1970 to today, or ten years ahead by mistake, makes everything look
expired, and what was deleted is still gone when the clock is right again. So after a jump nothing
is deleted for its age until a whole retention time has passed on a clock that cannot jump. By then
everything that was there before has really expired, whatever the wall clock says.

A jump is a change of the wall clock relative to the monotonic one. Across a boot, where the
monotonic clock restarts, a jump is assumed if the newest message is from the future, or is older
than the retention time. The last observation is kept in penstock/retention.json, so a restart does
not end the wait. Deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.shared.clock import Clock
from penstock.shared.files.durable import replace_file
from penstock.shared.memory.run_directory import boot_id

# Ordinary corrections and drift of a clock are below this. Daylight saving is not a jump: it
# changes local time, not the time that is counted from 1970.
JUMP_MS = 3_600_000
# In a request to clean: its sender has looked at the clock and says that it is right, whatever it
# did before.
TRUST_CLOCK = b"trust-clock"


class _Seen(msgspec.Struct):
    """`ahead_ms`: wall clock less monotonic clock. `kept_until_ms`: monotonic; 0: no wait.

    Both are valid only in the boot of `boot_id`, because the monotonic clock begins there.
    """

    boot_id: str
    ahead_ms: int
    kept_until_ms: int


class RetentionClock:
    """For the cleaner. `newest_ms` is the store time of the newest message, 0 without one.

    `reserved_ms` is how long a segment is kept. If it is 0 nothing is protected, and a jump is only
    recorded. `say` gets a line when a wait begins, and one when the file cannot be written.
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
        # The monotonic clock went on while no broker ran. So a jump in that time is a change of
        # `ahead_ms`, and the next look sees it like any other.
        if last is not None and last.boot_id == boot:
            self._seen = last
            return
        self._seen = _Seen(boot, ahead_ms, 0)
        quiet_ms = clock.now_ms() - newest_ms if newest_ms else 0
        # How much is left of a wait that the boot has interrupted is not known, so it starts over.
        # Messages stored during a wait have the doubtful time, and prove nothing.
        kept = last is not None and last.kept_until_ms
        # A store that was off for longer than its retention looks like a clock that is ahead. It
        # waits, too: that costs disk space, while the other mistake would cost messages.
        if kept or quiet_ms < -JUMP_MS or quiet_ms > max(reserved_ms, JUMP_MS):
            self._keep(f"the newest message is {quiet_ms // 1000} s old by this clock")
        else:
            self._save()

    def now_ms(self) -> int:
        """Wall time; while that is not believed 0, at which nothing has expired.

        Call it regularly, not only when something may expire: only a call notices a jump and starts
        the wait.
        """
        # Compared with the last jump or the boot's first start, and not with the last call:
        # corrections that add up to an hour are a jump, too.
        jump_ms = self._ahead_ms() - self._seen.ahead_ms
        if abs(jump_ms) > JUMP_MS:
            # a jump back counts as another jump, and the wait starts over
            self._seen.ahead_ms += jump_ms
            self._keep(f"the clock has jumped by {jump_ms // 1000} s")
        if self._seen.kept_until_ms:
            if self._clock.monotonic_ms() < self._seen.kept_until_ms:
                return 0
            self._seen.kept_until_ms = 0
            # otherwise the next boot would find the wait in the file, and start it over
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
        except OSError as error:  # it is still known as long as this process lives
            self._report(f"{self._file} cannot be written: {error}")


def held_ms(file: Path, clock: Clock) -> int:
    """For how many ms a running broker's file lets nothing be deleted for its age; 0 where the
    clock is believed.

    For other processes: all processes of a boot share the monotonic clock. A file of an earlier
    boot says nothing; the next start decides.
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
        return None  # then nothing is known, as at a first start
