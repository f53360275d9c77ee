"""The supervisor: starts the actors, watches them, replaces what is dead or frozen, stops them.

The roster says which actors there are, and in which order they start and stop. An actor is a fork
of this process, so a replacement needs no imports. The supervisor watches three things: whether a
child has ended (SIGCHLD), whether it is stopped (a SIGSTOPped actor is dead too), and whether its
heartbeat in the positions page moves. It kills before it replaces, waits until the kernel has taken
the old process away, and only then raises the generation and forks: two of one kind never run.

It never asks an actor anything and never waits for its answer. When the supervisor dies, the kernel
kills the actors. What a start and a stop do to the store is in shared/recovery.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from penstock.shared.clock import Clock, SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.readable import is_readable
from penstock.shared.memory.positions import STATES
from penstock.shared.memory.process_state import is_stopped
from penstock.shared.memory.roster import ACTORS, row_of, start_order, stop_order
from penstock.shared.process.actor import (
    CLASSES,
    SIGNALS,
    die_with_parent,
    import_actors,
    importing,
    keep_to_one_thread,
    run_actor,
)
from penstock.shared.process.connection_limit import raise_open_files_limit
from penstock.shared.process.log_line import LoggedLines, Report, log_error
from penstock.shared.process.malloc_tuning import keep_large_blocks
from penstock.shared.recovery.close_store import close_store
from penstock.shared.recovery.history import keep_recovery
from penstock.shared.recovery.open_store import OpenStore, open_store

CHECK_MS = 500  # a child's end wakes it; all else that it checks takes seconds to be sure of
# While an actor starts, so that its state becomes "running" as soon as it runs.
START_CHECK_MS = 5
BEAT_LATE_MS = 1000  # an actor that is busy starting has beaten within this time
READY_TIMEOUT_MS = 10_000
STOP_TIMEOUT_MS = 10_000
STOP_QUEUE_MS = 2  # more for each queue, whose file and directory the flusher may have to sync
SPARE_STOP_MS = 1000  # then a spare actor is killed: whoever uses it asks again
# An actor that failed by itself sooner than this after its start waits for the rest of this time.
# Otherwise an actor that cannot start would be forked as fast as the machine can.
MIN_RUN_MS = 1000
FAILURES_LIMIT = 5
FAILURES_WINDOW_MS = 60_000
# If this process was not scheduled for this long, the actors may not have been either, so their
# silence proves nothing.
LAPSE_MS = 1000
# An actor that ends by one of these counts as killed from outside, and is always replaced at once.
# Any other end is its own failure, and too many of those stop the broker.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_CHANGES = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

DOWN, STARTING, RUNNING, STOPPING, OFF = range(len(STATES))


class _Child:
    """What the supervisor knows of one actor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = self.generation = 0
        self.restarts = -1
        self.started_ms = self.start_at_ms = self.stopped_since_ms = 0
        # killed by the supervisor, and not gone yet
        self.doomed = False
        # not to be started before the broker is ready
        self.is_held = not row_of(name).is_awaited
        self.is_spare = row_of(name).is_spare
        # asked to finish for good; and whether it has
        self.retiring = self.retired = False


class Supervisor:
    """One broker on one store."""

    def __init__(
        self, config: Config, clock: Clock | None = None, report: Report | None = None
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._report = report or (lambda line, **about: None)
        self._children = {name: _Child(name) for name in start_order(config)}
        self._failures, self._asked_to_stop = deque[int](), False
        self._tended_ms = self._attentive_since_ms = self._clock.monotonic_ms()
        self.store: OpenStore

    def open(self) -> None:
        """Recover the store and start the actors; they serve when `wait_ready` returns."""
        LoggedLines(self._report).install()
        keep_large_blocks()
        keep_to_one_thread()
        raise_open_files_limit()
        with importing(self._children):
            self.store = open_store(self._config, self._clock)
        for remark in self.store.remarks:
            self._report(remark)
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        gc.freeze()  # the children share what is here now, so do not write to its pages
        self._tended_ms = self._clock.monotonic_ms()
        for name in {*ACTORS} - self._children.keys():
            self.store.positions.supervise(name, state=OFF)
        for child in self._children.values():
            if child.is_held:
                self.store.positions.supervise(child.name, state=STARTING)
            else:
                self._start(child)
        if remark := keep_recovery(self.store.paths, self.store.recovered, self._clock.now_ms()):
            self._report(remark)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = True

    def wait_ready(self, look: Callable[[], None] = lambda: None) -> bool:
        """Return when every awaited actor works; False when asked to stop before that.
        For `look` see `run`. Raises StoreUnavailable when an actor cannot start."""
        deadline_ms = self._clock.monotonic_ms() + READY_TIMEOUT_MS
        awaited = [child for child in self._children.values() if not child.is_held]
        while not all(map(self._is_running, awaited)):
            self._tend()
            look()
            late = [child.name for child in awaited if not self._is_running(child)]
            if self._clock.monotonic_ms() > deadline_ms and not self._starts_on(late):
                raise StoreUnavailable(
                    f"not all actors worked within {READY_TIMEOUT_MS} ms",
                    ", ".join(late),
                    "what they printed says why",
                )
            if self._asked_to_stop:
                return False
            self._sleep(START_CHECK_MS)
        for child in self._children.values():
            child.is_held = False
        return True

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Tend the actors until SIGTERM or SIGINT, with a call of `look` in each turn. Raises
        StoreUnavailable on a crash loop."""
        while not self._asked_to_stop:
            look()  # first, because it reports that the broker is ready
            self._tend()
            self._sleep(self._next_look_ms())

    def stop(self) -> bool:
        """Stop the actors, upstream first, and close the store; returns whether it is clean."""
        try:
            for name in stop_order(self._config):
                self._retire(self._children[name])
            clean = close_store(self.store, self._config)
        except (PenstockError, OSError) as error:
            self._report(str(error))
            self.kill()
            clean = False
        self.store.positions.close()
        os.close(self.store.lock)
        return clean

    def kill(self) -> None:
        """Kill the actors with SIGKILL; the next start recovers."""
        living = [child for child in self._children.values() if child.pid]
        for child in living:
            os.kill(child.pid, signal.SIGKILL)
        for child in living:
            os.waitpid(child.pid, 0)
            child.pid = 0

    # --- one actor ---

    def _start(self, child: _Child) -> None:
        """Fork an actor. Its predecessor, if any, is gone."""
        import_actors(child.name)
        child.generation += 1
        child.restarts += 1
        child.started_ms = self._clock.monotonic_ms()
        child.stopped_since_ms = 0
        child.doomed = False
        self.store.positions.supervise(
            child.name, generation=child.generation, restarts=child.restarts, state=STARTING
        )
        parent = os.getpid()
        # Blocked during the fork: until the child has its own handlers it would run this process's,
        # and a signal to the child would stop the broker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(child, parent)
        except OSError as error:
            self._tell(child, f"cannot be started: {error}; trying again; by ulimit -u, pids.max?")
            child.start_at_ms = child.started_ms + MIN_RUN_MS
            self.store.positions.supervise(child.name, state=DOWN)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # If this process dies before the page has the pid, the kernel still kills the child.
        child.pid = pid
        crash_point("sup.after_spawn")
        self.store.positions.supervise(child.name, pid=pid)

    def _become(self, child: _Child, parent: int) -> None:
        """In the fork: be the actor. Never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            die_with_parent(parent)
            # a terminal's Ctrl-C is for the supervisor, which stops the actors in order
            os.setpgid(0, 0)
            self._woken.close()
            self._waker.close()
            os.close(self.store.lock)
            listening = self.store.listeners.keep_for(child.name)
            run_actor(
                CLASSES[child.name],
                child.name,
                self._config,
                self.store.run,
                child.generation,
                listening,
            )
            code = 0
        except BaseException as error:
            log_error(self._clock.now_ms(), child.name, error, **self._about(child))
        finally:
            os._exit(code)

    def _about(self, child: _Child) -> dict[str, Any]:
        """Fields of a log line about an actor, for programs: its generation, and the log's end."""
        offset = self.store.positions["wrote"]
        return {"actor": child.name, "generation": child.generation, "offset": offset}

    def _tell(self, child: _Child, what: str) -> None:
        self._report(f"{child.name} {what}", **self._about(child))

    def _is_running(self, child: _Child) -> bool:
        life = self.store.positions.life(child.name)
        return bool(child.pid) and life.working_generation == child.generation

    def _starts_on(self, names: list[str]) -> bool:
        """Whether all of these are still busy starting: a long log takes its time."""
        now_ms = self._clock.monotonic_ms()
        return all(now_ms - self._seen_ms(self._children[name]) < BEAT_LATE_MS for name in names)

    def _seen_ms(self, child: _Child) -> int:
        """When this actor last showed that it moves."""
        life = self.store.positions.life(child.name)
        beat_ms = life.heartbeat_ms if life.beating_generation == child.generation else 0
        return max(child.started_ms if child.pid else 0, beat_ms)

    def _tend(self) -> None:
        """Look after every actor once."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._tended_ms > LAPSE_MS:
            # a suspended machine, or a debugger: give every actor its whole timeout again
            self._attentive_since_ms = now_ms
        self._tended_ms = now_ms
        for child in self._children.values():
            self._reap(child)
            if child.pid:
                self._watch(child, now_ms)
            elif not (child.retired or child.is_held) and now_ms >= child.start_at_ms:
                self._start(child)

    def _watch(self, child: _Child, now_ms: int) -> None:
        """Kill an actor that does not move. When it is gone, `_reap` sees to its successor."""
        if child.doomed:
            return
        if self.store.positions.life(child.name).state == "starting" and self._is_running(child):
            self.store.positions.supervise(child.name, state=RUNNING)
        frozen = False
        stopped_ms = now_ms - child.stopped_since_ms if child.stopped_since_ms else -1
        if stopped_ms >= self._config.actor_stopped_timeout_ms:
            frozen = is_stopped(child.pid)
            if not frozen:  # the kernel does not report that it went on if it has ended since
                child.stopped_since_ms = 0
        seen_ms = max(self._seen_ms(child), self._attentive_since_ms)
        if frozen or now_ms - seen_ms > self._config.actor_stall_timeout_ms:
            why = "is stopped" if frozen else "does not move"
            self._tell(child, f"(pid {child.pid}) {why}; replacing it")
            crash_point("sup.before_kill_old")
            # No replacement yet: a process that waits for a disk goes only when the disk answers,
            # and until then it may still write. `_reap` sees it go, then `_tend` starts the next.
            os.kill(child.pid, signal.SIGKILL)
            child.doomed = True

    def _next_look_ms(self) -> int:
        """How long there is nothing to do, unless a child changes its state."""
        now_ms = self._clock.monotonic_ms()
        check_ms = max(1, min(CHECK_MS, self._config.actor_stall_timeout_ms // 4))
        # at the times when actors look, too: the first to wake wakes the processor for all
        due_ms = [now_ms + check_ms - now_ms % check_ms]
        for child in self._children.values():
            if child.is_held or child.retired:
                continue  # nothing is due for it, whatever was noted of it before
            if not child.pid:
                due_ms.append(child.start_at_ms)
            elif child.stopped_since_ms and not child.doomed:
                due_ms.append(child.stopped_since_ms + self._config.actor_stopped_timeout_ms)
            elif not self._is_running(child):
                due_ms.append(now_ms + START_CHECK_MS)
        return max(0, min(due_ms) - now_ms)

    def _reap(self, child: _Child) -> None:
        """Note what has happened to an actor: it has ended, stopped, or continued."""
        while child.pid:
            found = os.waitid(os.P_PID, child.pid, _CHANGES)
            if found is None:
                return
            if found.si_code == os.CLD_STOPPED:
                child.stopped_since_ms = self._clock.monotonic_ms()
            elif found.si_code == os.CLD_CONTINUED:
                child.stopped_since_ms = 0
            else:
                self._ended(child, found.si_code, found.si_status)

    def _ended(self, child: _Child, code: int, status: int) -> None:
        """An actor is gone: start another one, at once unless it keeps failing by itself."""
        now_ms = self._clock.monotonic_ms()
        killed = code in (os.CLD_KILLED, os.CLD_DUMPED)
        pid, child.pid = child.pid, 0
        self.store.positions.supervise(child.name, pid=0, state=DOWN)
        if child.retiring and (child.is_spare or not killed and status == 0):
            child.retired = True
            return
        why = f"was killed by {signal.Signals(status).name}" if killed else f"exited with {status}"
        if not child.doomed:
            self._tell(child, f"(pid {pid}) {why}; starting another")
        # A kill from outside says nothing about the actor's own health, so it costs no budget.
        if killed and status in _OUTSIDE or not killed and status == 0:
            return
        if now_ms - child.started_ms < MIN_RUN_MS:
            child.start_at_ms = child.started_ms + MIN_RUN_MS
        if child.is_spare:
            return
        while self._failures and self._failures[0] < now_ms - FAILURES_WINDOW_MS:
            self._failures.popleft()
        self._failures.append(now_ms)
        if len(self._failures) >= FAILURES_LIMIT:
            raise StoreUnavailable(
                f"actors have failed {FAILURES_LIMIT} times in {FAILURES_WINDOW_MS // 1000} s",
                f"{child.name} {why}",
                "what it printed says why; the next start recovers",
            )

    def _retire(self, child: _Child) -> None:
        """Have an actor finish. One that dies meanwhile is replaced, because its work must be done.

        Raises StoreUnavailable if it does not end. A spare one has no work that must be done.
        """
        child.retiring, asked = True, 0
        child.retired |= child.is_held or child.is_spare and not child.pid  # nothing to finish
        limit_ms = STOP_TIMEOUT_MS + STOP_QUEUE_MS * self.store.positions["queue_count"]
        deadline_ms = self._clock.monotonic_ms() + (SPARE_STOP_MS if child.is_spare else limit_ms)
        while True:
            self._tend()
            if child.retired:
                return self.store.listeners.close_for(child.name)
            if child.pid and not child.doomed and asked != child.generation:
                self.store.positions.supervise(child.name, state=STOPPING)
                os.kill(child.pid, signal.SIGTERM)
                os.kill(child.pid, signal.SIGCONT)  # a stopped process would never get the SIGTERM
                asked = child.generation
            if self._clock.monotonic_ms() > deadline_ms and child.is_spare and child.pid:
                os.kill(child.pid, signal.SIGKILL)
                # Not waited for: a process may wait long for its disk. `_reap` notes its end.
                child.doomed = child.retired = True
            elif self._clock.monotonic_ms() > deadline_ms:
                raise StoreUnavailable(
                    f"an actor did not stop within {limit_ms} ms",
                    child.name,
                    "it was killed; the next start recovers",
                )
            self._sleep(self._next_look_ms())

    def _sleep(self, timeout_ms: int) -> None:
        """Sleep until a signal comes (a child's end is one), or the time is over."""
        if is_readable(self._woken.fileno(), timeout_ms / 1000):
            self._woken.recv(4096)
