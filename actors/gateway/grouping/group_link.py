"""The gateway's questions to the coordinator, and commits that may be said a little later.

A client that pulls commits with each pull, and waits for no answer to that: said at once, it would
have the coordinator work for each message of a few hundred a second. So such commits wait up to
LATE_MS, and the last one of each queue is said. Whatever else is asked is asked after them: a
member leaves, gives up a queue, or is described with all that it has committed.

What waits when the gateway dies is as lost as a pull that was on its way; the client says it again
with its next one.
"""

from __future__ import annotations

from collections.abc import Hashable

from penstock.actors.gateway.asking.link import Link
from penstock.actors.gateway.asking.questions import Make, Then

LATE_MS = 100


class GroupLink(Link):
    """A link to the coordinator."""

    # what is asked later, by that of which only the last word counts, and when it has to be
    _late: dict[Hashable, Make]
    _late_ms = 0

    @property
    def waits(self) -> bool:
        """Whether something has yet to be said."""
        return self._late_ms > 0

    def ask(self, make: Make, then: Then | None, now_ms: int, last_of: Hashable = None) -> None:
        """See Questions.ask. With no `then` it may wait, until LATE_MS later or the next question,
        and nobody hears the answer."""
        if then is not None:
            self._say_late(now_ms)
            super().ask(make, then, now_ms, last_of)
            return
        if not self.waits:
            self._late, self._late_ms = {}, now_ms + LATE_MS
        self._late[last_of] = make

    def work(self, now_ms: int) -> int:
        if self.waits and now_ms >= self._late_ms:
            self._say_late(now_ms)
        return super().work(now_ms)

    def _say_late(self, now_ms: int) -> None:
        if self.waits:
            self._late_ms = 0
            for last_of, make in self._late.items():
                super().ask(make, nobody, now_ms, last_of)


def nobody(answer: object) -> None:
    """It is repeated until there is an answer."""
