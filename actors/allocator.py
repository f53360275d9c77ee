"""The allocator: makes commit log segments ahead of the writer.

Owns:     `allocated`, `allocate_error`; the making of segment files.
Reads:    `wrote`, `append_wanted`, `read_only`.
Hears:    the writer's doorbell.
Rings:    the writer.
On crash: the next one lists the directory and makes its names durable, which its predecessor may
          not have come to; a half-made file never had its name there, and goes.
"""

from __future__ import annotations

import zmq

from penstock.shared.actor import TICK_MS, Stage
from penstock.shared.durable_files import make_file, sync_directory
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.mapped_file_queue import segment_bases

# After a failure, usually a full disk, the next try waits this long.
RETRY_MS = 1000


class Allocator:
    """See the head of this file."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._positions = stage.positions
        self._segment_bytes = stage.config.mapped_file_size_commit_log_bytes
        self._paths = StorePaths(stage.config.store)
        self._retry_at_ms = 0

    def start(self) -> None:
        for growing in self._paths.half_made.glob("commitlog-*"):
            growing.unlink()
        sync_directory(self._paths.commit_log)
        bases = segment_bases(self._paths.commit_log, self._segment_bytes)
        wrote = self._positions["wrote"]
        start = wrote - wrote % self._segment_bytes
        self._allocated = bases[-1] + self._segment_bytes if bases else start
        self._positions.publish("allocated", self._allocated)

    def work(self) -> int:
        if self._allocated >= self._target() or self._positions["read_only"]:
            return 0
        if self._stage.clock.monotonic_ms() < self._retry_at_ms:
            return 0
        path = self._paths.commit_log / segment_name(self._allocated)
        try:
            make_file(self._paths.half_made, path, self._segment_bytes, sparse=False)
        except OSError as error:
            self._positions.publish("allocate_error", error.errno or 1)
            self._retry_at_ms = self._stage.clock.monotonic_ms() + RETRY_MS
            return 0
        self._allocated += self._segment_bytes
        self._positions.publish("allocated", self._allocated)
        self._positions.publish("allocate_error", 0)
        self._stage.bus.ring("writer")
        return 1

    def _target(self) -> int:
        """Segments should exist up to here: the one being written, and one more once it is used.

        A store that has nothing in its last segment needs no second one yet.
        """
        wrote = self._positions["wrote"]
        into = wrote % self._segment_bytes
        ahead = wrote - into + (2 if into else 1) * self._segment_bytes
        return max(ahead, self._positions["append_wanted"])

    def inputs(self) -> list[zmq.Socket[bytes]]:
        return []

    def idle_ms(self) -> int:
        return TICK_MS

    def let_go(self) -> None:
        """What it has mapped lies ahead of the writer."""

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held. Segments behind the log's end go when the whole store is stopped."""
