"""One call of a broker's short life fails, and perhaps all after it: what must hold then.

Producers are told so, or wait, or do not notice; consumers read on; no actor fails. After a failed
flush of the log, a queue, the index or the checkpoint nothing is acknowledged any more, whatever is
sent. After any other failure messages are accepted within a second of the disk's recovery. A start
that fails says what it could not do. A stop leaves what the next start recovers. No acknowledged
message is lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.arena import Arena
from penstock.chaos.history import check_acknowledged
from penstock.chaos.interposed.faulty_disk import FLUSH, OPEN
from penstock.chaos.load import read_all
from penstock.chaos.storage.short_life import ShortLife, short_life
from penstock.shared.errors import BrokerBusy, FlushTimeout, PenstockError, StoreUnavailable
from penstock.shared.layout import StorePaths, is_segment_name

RESUMED_S = 1.0
# seconds for the actor that finds the error to report it
TOLD_S, LOOK_S = 1.0, 0.002


class Failing(NamedTuple):
    """The `nth` call of this kind fails with this errno; later ones too, unless `once`. Where the
    disk `stays` as it is, the broker is stopped before the disk works again."""

    kind: str
    number: int
    nth: int
    once: bool
    stays: bool

    @property
    def error(self) -> str:
        return os.strerror(self.number)

    def __str__(self) -> str:
        until = "once" if self.once else "and all after it"
        return f"{self.error} at {self.kind} call {self.nth}, {until}"


def check_failing(
    arena: Arena, place: Path, library: Path, settings: dict[str, object], failing: Failing
) -> list[str]:
    """Live such a life, and then another one on a good disk; return what is wrong."""
    with short_life(place, library, settings) as life:
        life.disk.fail(failing.kind, failing.number, first=failing.nth, once=failing.once)
        if said := life.start():
            wrong = [] if failing.error in said else [f"nobody says what fails: {said}"]
        else:
            wrong = _check_running(arena, life, failing)
        if life.serves and life.broker.process.poll() is None:
            wrong += _check_stop(life)
        # an actor that cannot open its files ends, and the broker ends if the actor never can
        wrong += life.check_tidy(restarts=failing.kind == OPEN)
        life.broker.clear()
        wrong += life.check_next_life()
        arena.report.acknowledged += len(life.acked)
        at = [f"{failed.call} {failed.path.name}" for failed in life.disk.failed()[:1]]
        return [f"{failing} ({' '.join(at)}): {each}" for each in wrong]


def _check_running(arena: Arena, life: ShortLife, failing: Failing) -> list[str]:
    wrong = []
    if not life.send_all():
        told = [each for each in life.errors if not _is_told(each, failing)]
        wrong += [f"a producer is told: {each}" for each in told][:1]
        # a process that cannot open any file cannot read
        wrong += life.check_readable() if failing.kind != OPEN else []
    if life.broker.process.poll() is not None:
        said = life.broker.output()
        return [] if failing.error in said else [f"the broker ends, and nobody says why: {said}"]
    lost = [each.path for each in life.disk.failed() if _is_flushers(life, each.path)]
    if _is_read_only(life, expected=bool(lost) and failing.kind == FLUSH):
        return wrong + _check_read_only(life, failing)
    if lost and failing.kind == FLUSH:
        wrong.append(f"a flush of {lost[0]} has failed, and the store is not read-only")
    if not failing.stays:
        life.disk.heal()
        wrong += _check_resumed(arena, life)
    return wrong


def _is_flushers(life: ShortLife, path: Path) -> bool:
    """Whether only the flusher syncs this file while a broker runs. Any other actor that fails to
    make or name a file can do it again."""
    paths = StorePaths(life.broker.store.resolve())
    if paths.consume_queue in path.parents:
        return is_segment_name(path.name)
    return path in (paths.checkpoint, paths.known_queues) or path.parent in (
        paths.commit_log,
        paths.index,
    )


def _is_read_only(life: ShortLife, *, expected: bool) -> bool:
    """Whether the positions page says that a flush has failed. Where that is expected, the page may
    lag the call by a moment."""
    until = time.monotonic() + (TOLD_S if expected else 0)
    while not life.broker.status()["positions"]["flush_error"]:
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_S)
    return True


def _check_read_only(life: ShortLife, failing: Failing) -> list[str]:
    """Check that nothing is acknowledged any more, even on a disk that works again: the kernel
    reports a failed flush once, so a later success would prove nothing."""
    before = len(life.acked)
    if not failing.stays:
        life.disk.heal()
    with life.producer() as producer:
        life.send(producer, 1)
    if len(life.acked) > before:
        return ["a message is acknowledged after a flush has failed"]
    if not isinstance(life.errors[-1], StoreUnavailable) or failing.error not in str(
        life.errors[-1]
    ):
        return [f"a producer is not told that the store is read-only: {life.errors[-1]}"]
    return [] if failing.kind == OPEN else life.check_readable()


def _check_resumed(arena: Arena, life: ShortLife) -> list[str]:
    try:
        began = time.monotonic()
        took = life.await_send(10)
        life.broker.await_dispatched()
        arena.report.add_recovery("disk failed", took, time.monotonic() - began)
    except PenstockError as error:
        return [f"no message is taken when the disk is good again: {error}"]
    wrong = [f"a message is taken {took:.2f} s after the disk is good"] if took > RESUMED_S else []
    return wrong + check_acknowledged(
        life.acked, read_all(life.broker.consume), "or not read while the disk fails"
    )


def _is_told(error: PenstockError, failing: Failing) -> bool:
    """Whether this error tells a producer what is the matter, or that it has to wait."""
    if isinstance(error, StoreUnavailable):
        return failing.error in str(error)
    return isinstance(error, BrokerBusy | FlushTimeout)


def _check_stop(life: ShortLife) -> list[str]:
    code, wrong = life.stop()
    said = life.broker.output()
    if code and "the next start recovers" not in said:
        wrong.append(f"a stop ends with {code}, and nobody says what is next: {said[-500:]}")
    return wrong
