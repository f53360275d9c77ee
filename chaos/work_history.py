"""What the members of two groups wrote down, and whether it keeps a group's promises. No I/O.

    begin, end, again  GROUP TOPIC QUEUE OFFSET BODY NS     a handler; `again`: it gives it back
    own, lost          GROUP TOPIC QUEUE EPOCH - NS         the member has a claim, or no longer
    done               GROUP TOPIC QUEUE OFFSET - NS        the broker answered: all before is done

The judge asks no broker: it has these lines, what producers were told, and what is stored.

    every message that was acknowledged is handled
    no message is begun after a member was told that its offset is done
    no message is stored more often than it was sent and given back
    of each sharding key one message is in hand at a time, in order, and a member does not go back
    while it has a queue

A handler that was cut short by a kill counts as ended from then on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Queue = tuple[str, str, int]  # group, topic, queue id
TOLD = 20


class Line(NamedTuple):
    """One line of a program's history."""

    at_ns: int
    program: str
    what: str
    group: str
    topic: str
    queue_id: int
    number: int
    body: str

    @property
    def queue(self) -> Queue:
        return self.group, self.topic, self.queue_id


class Killed(NamedTuple):
    """A program that was killed, or told to leave, and when."""

    at_ns: int
    program: str


def read_lines(program: str, text: str) -> list[Line]:
    """Raises ValueError for a line that is not one of a history."""
    found = []
    for line in text.splitlines():
        what, group, topic, queue_id, number, body, at_ns = line.split(" ")
        place = int(queue_id), int(number)
        found.append(Line(int(at_ns), program, what, group, topic, *place, body))
    return found


def never_handled(lines: Iterable[Line], group: str, acknowledged: Iterable[str]) -> list[str]:
    """Bodies that were acknowledged, and that no handler of the group has finished."""
    ended = {each.body for each in lines if each.group == group and each.what == "end"}
    return sorted(set(acknowledged) - ended)


def repeated(lines: Sequence[Line]) -> list[str]:
    """What was begun after a member was told that it is done."""
    done: dict[Queue, tuple[int, Line]] = {}
    wrong = []
    for each in sorted(lines):
        offset, told = done.get(each.queue, (0, each))
        if each.what == "done" and each.number > offset:
            done[each.queue] = each.number, each
        elif each.what == "begin" and each.number < offset:
            wrong.append(
                f"{each.program} begins {_name(each)} {_ms(each.at_ns - told.at_ns)} after "
                f"{told.program} was told that all before {offset} is done"
            )
    return wrong


def unsaid(lines: Iterable[Line]) -> list[Queue]:
    """Queues in which something was begun that, by these lines, no member was told is done."""
    begun: dict[Queue, int] = defaultdict(int)
    done: dict[Queue, int] = defaultdict(int)
    for each in lines:
        if each.what == "begin":
            begun[each.queue] = max(begun[each.queue], each.number + 1)
        elif each.what == "done":
            done[each.queue] = max(done[each.queue], each.number)
    return sorted(queue for queue, stop in begun.items() if stop > done[queue])


def stored_too_often(lines: Sequence[Line], stored: Iterable[tuple[str, str]]) -> list[str]:
    """Given (group, body) of each stored message: those that are there more often than they were
    sent and given back."""
    again = Counter((each.group, each.body) for each in lines if each.what == "again")
    found = Counter(stored)
    return [
        f"{body} is stored {count} times for {group}, and was given back {again[group, body]} times"
        for (group, body), count in sorted(found.items())
        if count > 1 + again[group, body]
    ]


def in_hand_at_once(lines: Iterable[Line], kills: Iterable[Killed]) -> list[str]:
    """What an orderly group has begun while another message of the key was in hand. A body is its
    sharding key, a dot and a number."""
    killed = {each.program: each.at_ns for each in kills}
    in_hand: dict[str, Line] = {}
    wrong = []
    for each in sorted(lines):
        key = each.body.rpartition(".")[0]
        if each.what in ("end", "again"):
            in_hand.pop(key, None)
        elif each.what == "begin":
            other = in_hand.get(key)
            if other is not None and killed.get(other.program, 1 << 62) > each.at_ns:
                wrong.append(f"{each.program} begins {_name(each)} while {_name(other)} is in hand")
            in_hand[key] = each
    return wrong


def gone_back(lines: Iterable[Line]) -> list[str]:
    """What a member of an orderly group has begun after a later message of the same claim."""
    # per claim the offset that was begun last
    begun: dict[tuple[str, Queue], int] = {}
    wrong = []
    for each in sorted(lines):
        if each.what == "own":
            begun[each.program, each.queue] = -1
        elif each.what == "begin":
            before = begun.get((each.program, each.queue), -1)
            if each.number < before:
                wrong.append(f"{each.program} goes back from {before} to {_name(each)}")
            begun[each.program, each.queue] = each.number
    return wrong


def left_out(lines: Iterable[Line], keys: Mapping[str, Sequence[str]]) -> list[str]:
    """What an orderly group has begun before all earlier messages of its key were handled. `keys`
    has the stored bodies of each sharding key, in order."""
    place = {body: (key, at) for key, bodies in keys.items() for at, body in enumerate(bodies)}
    ended: dict[str, set[int]] = defaultdict(set)
    next_place: dict[str, int] = defaultdict(int)
    wrong = []
    for each in sorted(lines):
        if each.body not in place:
            continue
        key, at = place[each.body]
        if each.what == "end":
            ended[key].add(at)
            while next_place[key] in ended[key]:
                next_place[key] += 1
        elif each.what == "begin" and at > next_place[key]:
            missed = keys[key][next_place[key]]
            wrong.append(f"{each.program} begins {_name(each)}, and {missed} was not handled")
    return wrong


class Owners:
    """The owners of queues, line by line; the lines of one program come in order."""

    def __init__(self) -> None:
        # queue -> (epoch, time, program) of each claim; they come from several programs
        self._claims: dict[Queue, list[tuple[int, int, str]]] = defaultdict(list)
        self._lost: dict[tuple[Queue, int, str], int] = {}

    def take(self, lines: Iterable[Line]) -> None:
        for each in lines:
            if each.what == "own":
                self._claims[each.queue].append((each.number, each.at_ns, each.program))
            elif each.what == "lost":
                self._lost[each.queue, each.number, each.program] = each.at_ns

    def owner(self, queue: Queue, at_ns: int) -> str:
        """The program that had the queue at that time; "" if none is known."""
        for epoch, since_ns, program in sorted(self._claims[queue], reverse=True):
            if since_ns <= at_ns:
                lost_ns = self._lost.get((queue, epoch, program), 1 << 62)
                return program if at_ns < lost_ns else ""
        return ""

    def had(self, program: str, at_ns: int) -> list[Queue]:
        """The queues that a program had at that time."""
        return [queue for queue in list(self._claims) if self.owner(queue, at_ns) == program]

    def taken_ns(self, queue: Queue, gone: Killed) -> int:
        """How long after that time another program had the queue; -1: not yet."""
        times = [
            since_ns - gone.at_ns
            for _, since_ns, program in self._claims[queue]
            if program != gone.program and since_ns > gone.at_ns
        ]
        return min(times, default=-1)


def _name(line: Line) -> str:
    return f"{line.body} ({line.group}, {line.topic}/{line.queue_id} at {line.number})"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
