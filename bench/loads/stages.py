"""Where one message spent its time, by the moments that the positions page keeps.

A position's line says when it was published and when its owner had woken up (memory/positions.py).
A receiver of a message that came alone reads them at once: a position that is at the message's end
was moved by this message. So nothing is logged, nothing is sent, and the broker does what it does
otherwise. A stage that others have moved since, or that comes later than the consumer, is left out
for that message.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.bench.loads.percentile import percentile
from penstock.shared.memory.positions import Positions

# In pipeline order. Pulls are counted, so the value of that position is not a message's end.
_STAGES = ("wrote", "committed", "flushed", "queued")
_ANSWERED = "answered_pulls"


class Stage(msgspec.Struct, frozen=True):
    """One stage over all messages that were followed, in microseconds.

    `at` is the time from the message's due time until it reached the stage. If the stage's process
    slept, `wake` is from the previous event until it was awake, and `work` from there until the
    stage was reached.
    """

    stage: str
    process: str
    messages: int
    at_p50_us: float | None
    at_p99_us: float | None
    wake_p50_us: float | None
    work_p50_us: float | None


_OWNERS = {
    "sent": "producer",
    "wrote": "writer",
    "committed": "committer",
    "flushed": "flusher",
    "queued": "reput",
    _ANSWERED: "reader",
    "received": "consumer",
}


class Followed:
    """The messages that a consumer has followed."""

    def __init__(self, page: Path) -> None:
        self._positions = Positions(page)
        # stage -> (ns since due, ns of the wake or -1, ns of the work or -1)
        self._found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in _OWNERS}

    def follow(self, end: int, due_ns: int, sent_ns: int, received_ns: int) -> None:
        """A message that came alone was just received; its record ends at `end`."""
        moments = {name: self._positions.moment(name) for name in (*_STAGES, _ANSWERED)}
        own = {
            name: (moment.published_ns, moment.woke_ns)
            for name, moment in moments.items()
            if (name == _ANSWERED or moment.value == end)
            and sent_ns < moment.published_ns <= received_ns
        }
        times = [due_ns, sent_ns, *(published for published, _ in own.values())]
        for name, (published, woke) in own.items():
            before = max((at for at in times if at <= woke), default=woke)
            # if it was awake before the message was sent, it did not sleep
            slept = woke > sent_ns
            wake, work = (woke - before, published - woke) if slept else (-1, -1)
            self._found[name].append((published - due_ns, wake, work))
        self._found["sent"].append((sent_ns - due_ns, -1, -1))
        self._found["received"].append((received_ns - due_ns, received_ns - max(times), -1))

    def stages(self) -> list[Stage]:
        """The stages, in the order in which most messages reach them."""
        told = [_told(name, found) for name, found in self._found.items() if found]
        return sorted(told, key=lambda stage: stage.at_p50_us or 0)

    def close(self) -> None:
        self._positions.close()


def _told(name: str, found: list[tuple[int, int, int]]) -> Stage:
    columns = zip(*found, strict=True)
    at, wake, work = ([each / 1000 for each in column if each >= 0] for column in columns)
    halves = percentile(at, 50), percentile(at, 99), percentile(wake, 50), percentile(work, 50)
    return Stage(name.removesuffix("_pulls"), _OWNERS[name], len(found), *halves)
