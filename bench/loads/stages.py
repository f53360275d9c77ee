"""Where one message spent its time: from the moments that the positions page keeps.

A position's line says when it was published and when its owner had woken up (memory/positions.py).
Whoever receives a message that came alone looks there at once: what stands at that message's end
was moved by it. So nothing is logged, nothing is sent, and the broker does what it does otherwise.
A stage that others have moved on since, or that comes later than the consumer, is left out of that
message.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.bench.loads.percentile import percentile
from penstock.shared.memory.positions import Positions

# In the order of the pipeline. The pulls are counted, so their line has no message's end.
_STAGES = ("wrote", "committed", "flushed", "queued")
_ANSWERED = "answered_pulls"


class Stage(msgspec.Struct, frozen=True):
    """One stage over all messages that were followed, in microseconds.

    `at` is when it was reached after the message was due. `wake` is from what came before it until
    its process was awake, where that slept, and `work` from there until it was reached.
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
        # stage -> (ns after due, ns of the wake or -1, ns of work or -1)
        self._found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in _OWNERS}

    def follow(self, end: int, due_ns: int, sent_ns: int, received_ns: int) -> None:
        """A message that came alone and whose record ends there was received right now."""
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
            # awake since before the message was sent: it did not sleep
            slept = woke > sent_ns
            wake, work = (woke - before, published - woke) if slept else (-1, -1)
            self._found[name].append((published - due_ns, wake, work))
        self._found["sent"].append((sent_ns - due_ns, -1, -1))
        self._found["received"].append((received_ns - due_ns, received_ns - max(times), -1))

    def stages(self) -> list[Stage]:
        """What was found, the stages in the order in which most messages reach them."""
        told = [_told(name, found) for name, found in self._found.items() if found]
        return sorted(told, key=lambda stage: stage.at_p50_us or 0)

    def close(self) -> None:
        self._positions.close()


def _told(name: str, found: list[tuple[int, int, int]]) -> Stage:
    columns = zip(*found, strict=True)
    at, wake, work = ([each / 1000 for each in column if each >= 0] for column in columns)
    halves = percentile(at, 50), percentile(at, 99), percentile(wake, 50), percentile(work, 50)
    return Stage(name.removesuffix("_pulls"), _OWNERS[name], len(found), *halves)
