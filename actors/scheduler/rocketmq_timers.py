"""What RocketMQ finds of timers on a store that ran here: config/timercheck, and no wheel.

RocketMQ reads the wheel queue from the offset that is written here. What its own `timerwheel` and
`timerlog/` held is in that queue too. They do not know what was delivered since, so they are
deleted: with them RocketMQ would begin after the last message that it had read itself, and deliver
again what waits in both.

The offset is written first. It is never past a waiting message, so a kill at any point loses
nothing.
"""

from __future__ import annotations

import shutil

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file, sync_directory
from penstock.shared.layout import StorePaths
from penstock.shared.progress.timer_checkpoint import (
    encode_timer_checkpoint,
    timer_queue_offset,
)


class RocketMQTimers:
    """The files of one store. One process writes them."""

    def __init__(self, paths: StorePaths) -> None:
        self._file = paths.timer_checkpoint
        self._wheel = (paths.timer_wheel, paths.timer_log)
        self._kept = -1

    def keep(self, queue_offset: int, now_ms: int) -> None:
        """Have RocketMQ begin at this offset of the wheel queue. -1 is unknown: then what is there
        stays. Durable on return. Raises OSError."""
        if queue_offset in (-1, self._kept):
            return
        raw = read_file(self._file) if self._file.exists() else b""
        found, counter = timer_queue_offset(raw)
        has_wheel = any(path.exists() for path in self._wheel)
        if not raw or has_wheel or found != queue_offset:
            make_directory(self._file.parent)
            replace_file(self._file, encode_timer_checkpoint(queue_offset, counter + 1, now_ms))
            crash_point("schedule.before_wheel")
        if has_wheel:
            self._remove_wheel()
        self._kept = queue_offset

    def _remove_wheel(self) -> None:
        wheel, log = self._wheel
        wheel.unlink(missing_ok=True)
        if log.exists():
            shutil.rmtree(log)
        sync_directory(wheel.parent)
