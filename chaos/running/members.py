"""Members of groups come, leave, die and stand still, and so does what they talk to, under load.

Each program has a member in a group that works in any order and one in an orderly group. What they
wrote down is judged by chaos/work_history.py; when queues of a member that has gone are with others
is measured from the signal on.
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

# Of a round.
STRIKES = 30
PROGRAMS, MOST_PROGRAMS = 3, 5
# How long the queues of a member that has gone may have no owner before that is a fault in itself:
# an ended connection must be noticed before a session ends, and a broker has to start again first.
LATEST_S, LATEST_AMID_S = SESSION_MS / 1000, 90.0
# Within which time 99 of 100 queues are others' whose member has gone while the groups were at
# rest. It is judged over a whole run, once it says something of one in a hundred.
P99_MS, ENOUGH_QUEUES = {"killed": 3000, "left": 500}, 100
# An orderly member that a new coordinator has never heard may be frozen in the middle of a message,
# so its queues stay its own for a minute, however many coordinators come meanwhile. Both bounds are
# for what never comes: on a machine that does much else all takes several times as long.
KEPT_S = 120.0
# A new coordinator, or broker, has heard from all members by then.
SHAKEN_S = 3.0
# How long a group may take to be at rest.
CALM_S = 15.0
# What is struck, and how often of a hundred times.
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
# Of ten strikes how many wait until the groups are at rest.
CALM = 7
# The first of each round: what it provokes nothing else does but by a rare chance.
LATE_WORD = "member's word too late"


class Verdict(NamedTuple):
    """What was struck, when queues came to others, and which promises were broken."""

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
    """Over all rounds of a run: ways to go after which queues wait too long for an owner."""
    return [
        f"1 % of {found.queues} queues have no owner {found.p99_ms:.0f} ms after their member was "
        f"{what}, at rest: at most {P99_MS[what]} ms are allowed"
        for what, found in report.handovers().items()
        if what in P99_MS and found.queues >= ENOUGH_QUEUES and found.p99_ms > P99_MS[what]
    ]


def run_members(
    place: Path, settings: Mapping[str, object], strikes: int, dice: random.Random
) -> Verdict:
    """Strike this often, and go on until all that was acknowledged is handled."""
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
                time.sleep(dice.uniform(0, 0.5))  # the moment is what varies
                it.strike()
        except RoundOver:
            pass  # why is told below, with all else that is wrong
        finally:
            crew.end_of_feed.set()
            feeding.join()
        wrong = crew.settle()
        wrong += it.finish()
    return Verdict(it.struck, it.handed_over, len(crew.acknowledged), crew.handled, wrong)


class _Strikes:
    """One after the other."""

    def __init__(self, crew: Crew, dice: random.Random) -> None:
        self._crew, self._dice = crew, dice
        self.struck: Counter[str] = Counter()
        self.handed_over: dict[str, list[float]] = defaultdict(list)
        self._wrong: list[str] = []
        # queues that may be kept for their member: they are looked at in the end
        self._kept: list[tuple[str, Killed, Queue]] = []
        self._shaken_s = 0.0

    def await_calm(self, seconds: float = CALM_S) -> bool:
        """Wait until each program has queues of each group; whether that is so in time."""
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
        """A member that was taken for dead wakes up and says how far it is, when others are further
        in its queues. They stand still, so that nobody says so again, and are killed after that:
        whoever comes next goes on where the group is, and not where the member was."""
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
            # not sooner: others get further than by what it has read, and all of that is handled
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
            # its commit leaves with the join that tells it so, before it asks for any queue
            if not crew.wait_for(lambda: crew.has_lost(program, late, woken_ns), LATEST_AMID_S):
                self._wrong.append(f"{program.name} does not hear that it has lost {late}")
            for each in others:
                crew.kill(each)
            last = Killed(time.monotonic_ns(), "the others")
            crew.wait_for(lambda: all(crew.taken_s(q, last) >= 0 for q in late), LATEST_AMID_S)
        finally:
            crew.feed_rests.clear()

    def _freeze_with_a_word(self, program: Program) -> list[Queue]:
        """Freeze it while it has something to commit; the queues in which it has."""
        until_s = time.monotonic() + LATEST_AMID_S
        while time.monotonic() < until_s:
            program.freeze()
            own = self._crew.had(Killed(time.monotonic_ns(), program.name))
            # orderly ones stay its own for longer than it sleeps
            late = self._crew.unsaid([each for each in own if each[0] != ORDERLY], program)
            if late:
                return late
            program.go_on()
            time.sleep(self._dice.uniform(0, 0.1))
        self._wrong.append(f"{program.name} had nothing to commit in {LATEST_AMID_S:.0f} s")
        return []

    def is_wrong(self) -> bool:
        """Whether something is wrong already. Raises RoundOver."""
        self._crew.check()
        return bool(self._wrong)

    def _shake(self) -> None:
        """There is another coordinator, which has not heard of any member yet."""
        self._shaken_s = time.monotonic()

    def _freeze(self, seconds: float) -> None:
        program = self._dice.choice(self._crew.awake())
        program.freeze()
        time.sleep(seconds)
        program.go_on()
        time.sleep(self._dice.uniform(0, 0.15))

    def _freeze_broker(self, seconds: float) -> None:
        """All of it stands still at once, as where its machine does, and goes on in any order."""
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
            self._crew.start()  # at once, or before the next strike
        self._await_taken(what if calm or " " in what else f"{what} amid changes", gone, calm)

    def _leave(self, calm: bool) -> None:
        crew = self._crew
        program = self._dice.choice(crew.awake())
        gone = crew.tell_to_leave(program)
        self._await_taken("left" if calm else "left amid changes", gone, calm)
        self._wrong += crew.await_end(program)

    def _await_taken(self, what: str, gone: Killed, calm: bool) -> None:
        """Wait until others have what was a program's, and note how long that took."""
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
        """What was wrong, once the groups have handled everything."""
        for what, gone, queue in self._kept:
            # nobody has taken one that has nothing more to be handled
            if self._crew.taken_s(queue, gone) >= 0:
                self._note(f"{what}, orderly", gone, queue, KEPT_S)
        return self._wrong


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has been replaced
        os.kill(pid, number)
