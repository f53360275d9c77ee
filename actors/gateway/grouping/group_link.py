"""The gateway's questions to the coordinator, and commits that may be sent a little later.

A client commits with each pull, and waits for no answer. If each commit were sent at once, the
coordinator would have work for each of a few hundred messages a second. So such commits wait up to
LATE_MS, and only the last one of each queue is sent. Any other question is sent after them, so that
a member that leaves, gives up a queue or is described has committed all that it sent.

Commits that wait when the gateway dies are lost, like a pull on its way; the client repeats them
with its next pull.
"""

from __future__ import annotations

from collections.abc import Hashable

from penstock.actors.gateway.asking.link import Link
from penstock.actors.gateway.asking.questions import Make, Then

LATE_MS = 100


class GroupLink(Link):
    """A link to the coordinator."""

    # questions that wait, of which only the last per key counts, and when they must be sent
    _late: dict[Hashable, Make]
    _late_ms = 0

    @property
    def waits(self) -> bool:
        """Whether something has yet to be sent."""
        return self._late_ms > 0

    def ask(self, make: Make, then: Then | None, now_ms: int, last_of: Hashable = None) -> None:
        """See Questions.ask. Without `then` it may wait, for LATE_MS or until the next question,
        and nobody gets the answer."""
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
    """Takes an answer that nobody waits for; the question is repeated until there is one."""
