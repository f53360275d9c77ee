"""Members of groups come, leave, die and freeze, and so does what they talk to, under load.

Each program has a member in a group that works in any order and one in an orderly group.
chaos/work_history.py judges what they wrote down. The time until the queues of a departed member
are with others is measured from the signal on.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import NamedTuple

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import running
from penstock.chaos.clients.worker import ORDERLY, SESSION_MS
from penstock.chaos.report import Report
from penstock.chaos.running.crew import Crew, Program, RoundOver
from penstock.chaos.work_history import Killed, Queue

# in a round
STRIKES = 30
PROGRAMS, MOST_PROGRAMS = 3, 5
# How long the queues of a departed member may have no owner before that is a fault in itself. Amid
# changes an ended connection must be noticed first, and a broker has to start again.
LATEST_S, LATEST_AMID_S = SESSION_MS / 1000, 90.0
# Within this time 99 of 100 queues must be with others when their member departs while the groups
# are at rest. It is judged over a whole run, once there are enough queues for a percentile.
P99_MS, ENOUGH_QUEUES = {"killed": 3000, "left": 500}, 100
# A coordinator that has just started has never heard an orderly member that is frozen in the middle
# of a message, so the member keeps its queues for a minute, however many coordinators come
# meanwhile. Both bounds only catch what never comes: on a busy machine all takes several times as
# long.
KEPT_S = 120.0
# Seconds after which a new coordinator, or broker, has heard from all members.
SHAKEN_S = 3.0
# Seconds within which a group must come to rest.
CALM_S = 15.0
# What is struck, in percent.
STRUCK = {
    "member killed": 24,
    "member leaves": 14,
    "member joins": 6,
    "member frozen": 6,
    "member frozen past its session": 4,
    "member killed with the coordinator": 5,
    "coordinator killed": 10,
    "coordinator frozen": 6,
    "scheduler killed": 5,
    "scheduler frozen": 3,
    "transactions killed": 4,
    "transactions frozen": 3,
    "broker killed": 6,
    "broker frozen": 4,
}
# How many of ten strikes wait until the groups are at rest.
CALM = 7
# The first strike of each round: nothing else provokes what it does, except by a rare chance.
LATE_WORD = "member's word too late"


class Verdict(NamedTuple):
    """What was struck, how soon queues came to others, and which promises were broken."""

    struck: Counter[str]
    handed_over: Mapping[str, list[float]]
    acknowledged: int
    handled: int
    wrong: list[str]

    def __str__(self) -> str:
        struck = ", ".join(f"{count} x {name}" for name, count in sorted(self.struck.items()))
        return (
            f"{self.struck.total()} strikes ({struck}): {self.acknowledged:,} acknowledged, "
            f"{self.handled:,} handled, {len(self.wrong)} wrong"
        )


def members_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        found = run_members(room, any_settings(dice), STRIKES, dice)
        for kind, count in found.struck.items():
            arena.report.add_fault(f"{kind} at work", count)
        for what, times in found.handed_over.items():
            for seconds in times:
                arena.report.add_handover(what, seconds)
        arena.report.acknowledged += found.acknowledged
        arena.report.consumed += found.handled
        arena.report.add_violations(found.wrong, replay)


def late_handovers(report: Report) -> list[str]:
    """Over all rounds of a run: the ways to depart after which queues lack an owner too long."""
    return [
        f"1 % of {found.queues} queues have no owner {found.p99_ms:.0f} ms after their member was "
        f"{what}, at rest: at most {P99_MS[what]} ms are allowed"
        for what, found in report.handovers().items()
        if what in P99_MS and found.queues >= ENOUGH_QUEUES and found.p99_ms > P99_MS[what]
    ]


def run_members(
    place: Path, settings: Mapping[str, object], strikes: int, dice: random.Random
) -> Verdict:
    """Strike this often, and continue until all that was acknowledged is handled."""
    with running(place, settings) as broker, ExitStack() as stack:
        crew = Crew(broker, place)
        stack.callback(crew.kill_all)
        it = _Strikes(crew, dice)
        for _ in range(PROGRAMS):
            crew.start()
        feeding = threading.Thread(target=crew.feed, daemon=True)
        feeding.start()
        try:
            it.await_calm(LATEST_AMID_S)
            it.hear_a_late_word()
            for _ in range(strikes - 1):
                if it.is_wrong():
                    break
                time.sleep(dice.uniform(0, 0.5))  # a strike comes at a random moment
                it.strike()
        except RoundOver:
            pass  # the verdict below says why, with all else that is wrong
        finally:
            crew.end_of_feed.set()
            feeding.join()
        wrong = crew.settle()
        wrong += it.finish()
    return Verdict(it.struck, it.handed_over, len(crew.acknowledged), crew.handled, wrong)


class _Strikes:
    """Strikes at a crew, one after the other."""

    def __init__(self, crew: Crew, dice: random.Random) -> None:
        self._crew, self._dice = crew, dice
        self.struck: Counter[str] = Counter()
        self.handed_over: dict[str, list[float]] = defaultdict(list)
        self._wrong: list[str] = []
        # queues that their departed member may keep: they are checked in the end
        self._kept: list[tuple[str, Killed, Queue]] = []
        self._shaken_s = 0.0

    def await_calm(self, seconds: float = CALM_S) -> bool:
        """Wait until each program has queues of each group; return whether that is so in time."""
        return self._crew.wait_for(self._is_calm, seconds)

    def _is_calm(self) -> bool:
        return time.monotonic() - self._shaken_s > SHAKEN_S and self._crew.is_calm()

    def strike(self) -> None:
        crew, dice = self._crew, self._dice
        kind = dice.choices(list(STRUCK), list(STRUCK.values()))[0]
        while len(crew.programs) < PROGRAMS:
            crew.start()
        calm = dice.randrange(10) < CALM and self.await_calm()
        if kind == "member joins" and len(crew.programs) >= MOST_PROGRAMS:
            kind = "member leaves"
        self.struck[kind] += 1
        crew.note(f"{kind}{', calm' if calm else ''}")
        who, _, done = kind.partition(" ")
        if kind == "member joins":
            crew.start()
        elif kind == "member leaves":
            self._leave(calm)
        elif kind == "member frozen":
            self._freeze(dice.uniform(0.1, 1.5))
        elif kind == "member frozen past its session":
            self._freeze(SESSION_MS / 1000 + 1.5)
            if dice.random() < 0.5:
                self._kill(dice.choice(crew.awake()), "killed beside one that wakes up", False)
        elif who == "member":
            beside = done.endswith("coordinator")
            if beside:
                crew.broker.strike("coordinator", SIGKILL)
                self._shake()
            what = "killed with the coordinator" if beside else "killed"
            self._kill(dice.choice(crew.awake()), what, calm and not beside)
        elif kind == "broker frozen":
            self._freeze_broker(dice.choice((0.5, SESSION_MS / 1000 + 1.5)))
        elif who == "broker":
            crew.broker.kill()
            crew.broker.start()
            self._shake()
        else:
            crew.broker.strike(who, SIGKILL if done == "killed" else SIGSTOP)
            if who == "coordinator":
                self._shake()

    def hear_a_late_word(self) -> None:
        """A member that was taken for dead wakes up and commits an offset when others are already
        further in its queues. The others are frozen, so that none commits a later offset, and are
        then killed. The next owner must continue where the group is, not where the member was."""
        crew = self._crew
        self.struck[LATE_WORD] += 1
        crew.note(LATE_WORD)
        program = self._dice.choice(crew.awake())
        late = self._freeze_with_a_word(program)
        if not late:
            return
        gone = Killed(time.monotonic_ns(), program.name)
        try:
            crew.wait_for(lambda: all(crew.taken_s(q, gone) >= 0 for q in late), LATEST_AMID_S)
            # not sooner: others must get further than what it has read; then all of it is handled
            crew.feed_rests.set()
            for queue in late:
                self._note("frozen until others have its queues", gone, queue, LATEST_AMID_S)
            others = [each for each in crew.programs if each is not program]
            groups = {group for group, *_ in late}
            if not (
                crew.await_handled(groups)
                and crew.wait_for(lambda: not crew.unsaid(late), LATEST_AMID_S)
            ):
                self._wrong.append(f"nobody was told that all of {late} is done")
            for each in others:
                each.freeze()
            woken_ns = time.monotonic_ns()
            program.go_on()
            # the join whose answer tells it so carries its commit, before it asks for a queue
            if not crew.wait_for(lambda: crew.has_lost(program, late, woken_ns), LATEST_AMID_S):
                self._wrong.append(f"{program.name} does not hear that it has lost {late}")
            for each in others:
                crew.kill(each)
            last = Killed(time.monotonic_ns(), "the others")
            crew.wait_for(lambda: all(crew.taken_s(q, last) >= 0 for q in late), LATEST_AMID_S)
        finally:
            crew.feed_rests.clear()

    def _freeze_with_a_word(self, program: Program) -> list[Queue]:
        """Freeze the program while it has offsets to commit; return the queues of those."""
        until_s = time.monotonic() + LATEST_AMID_S
        while time.monotonic() < until_s:
            program.freeze()
            own = self._crew.had(Killed(time.monotonic_ns(), program.name))
            # its orderly queues would stay its own for longer than it sleeps
            late = self._crew.unsaid([each for each in own if each[0] != ORDERLY], program)
            if late:
                return late
            program.go_on()
            time.sleep(self._dice.uniform(0, 0.1))
        self._wrong.append(f"{program.name} had nothing to commit in {LATEST_AMID_S:.0f} s")
        return []

    def is_wrong(self) -> bool:
        """Whether something is wrong already. Raises RoundOver if a promise is broken."""
        self._crew.check()
        return bool(self._wrong)

    def _shake(self) -> None:
        """Note that there is another coordinator, which has not heard of any member yet."""
        self._shaken_s = time.monotonic()

    def _freeze(self, seconds: float) -> None:
        program = self._dice.choice(self._crew.awake())
        program.freeze()
        time.sleep(seconds)
        program.go_on()
        time.sleep(self._dice.uniform(0, 0.15))

    def _freeze_broker(self, seconds: float) -> None:
        """Freeze all processes at once, as a machine would; they continue in any order."""
        broker = self._crew.broker
        supervisor = broker.process.pid  # the first: it would replace those that stand still
        pids = [supervisor, *(pid for pid in broker.processes() if pid != supervisor)]
        for pid in pids:
            _signal(pid, SIGSTOP)
        time.sleep(seconds)
        for pid in self._dice.sample(pids, len(pids)):
            _signal(pid, SIGCONT)
        self._shake()

    def _kill(self, program: Program, what: str, calm: bool) -> None:
        gone = self._crew.kill(program)
        if self._dice.random() < 0.5:
            self._crew.start()  # now; otherwise the next strike does it
        self._await_taken(what if calm or " " in what else f"{what} amid changes", gone, calm)

    def _leave(self, calm: bool) -> None:
        crew = self._crew
        program = self._dice.choice(crew.awake())
        gone = crew.tell_to_leave(program)
        self._await_taken("left" if calm else "left amid changes", gone, calm)
        self._wrong += crew.await_end(program)

    def _await_taken(self, what: str, gone: Killed, calm: bool) -> None:
        """Wait until others have the queues that were the program's; note how long that took."""
        crew = self._crew
        latest_s = LATEST_S if calm else LATEST_AMID_S
        mine = crew.had(gone)
        if not calm:
            self._kept += [(what, gone, queue) for queue in mine if queue[0] == ORDERLY]
            mine = [queue for queue in mine if queue[0] != ORDERLY]
        crew.wait_for(lambda: all(crew.taken_s(queue, gone) >= 0 for queue in mine), latest_s)
        for queue in mine:
            self._note(what, gone, queue, latest_s)

    def _note(self, what: str, gone: Killed, queue: Queue, latest_s: float) -> None:
        seconds = self._crew.taken_s(queue, gone)
        if 0 <= seconds <= latest_s:
            self.handed_over[what].append(seconds)
        else:
            group, topic, queue_id = queue
            self._wrong.append(
                f"{topic}/{queue_id} of {group} is with nobody {latest_s:.0f} s after "
                f"{gone.program} was {what}"
            )

    def finish(self) -> list[str]:
        """Return what was wrong, once the groups have handled everything."""
        for what, gone, queue in self._kept:
            # a queue with nothing left to handle may have no later owner on record
            if self._crew.taken_s(queue, gone) >= 0:
                self._note(f"{what}, orderly", gone, queue, KEPT_S)
        return self._wrong


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has been replaced
        os.kill(pid, number)
