"""Which run of a broker a client's requests are for, and whether that run is still the one there.

A client connected by store names the run found in the store's run.json; one connected by endpoint
names no run and accepts whichever broker answers. `away` asks the driver to find out where the
broker is now; `elsewhere` is the error if another store's broker answered instead. Pure.
"""

from __future__ import annotations

from penstock.shared.errors import WrongStore
from penstock.shared.wire.messages import ConsumeAnswer, ProduceAnswer, Refused


class Aim:
    """The broker run that one client means, and what that broker last answered."""

    __slots__ = ("run", "store", "away", "elsewhere")

    def __init__(self) -> None:
        self.run = self.store = ""
        self.away = False
        self.elsewhere: WrongStore | None = None

    def heard(self, answer: ProduceAnswer | ConsumeAnswer) -> bool:
        """Note an answer. Returns whether it came from the broker that is meant."""
        if isinstance(answer, Refused) and answer.status == WrongStore.status:
            from penstock.shared.next_steps import quoted

            self.elsewhere = WrongStore(
                answer.what,
                f"{answer.value}, and not on {self.store}",
                f"see what runs on yours: penstock status --store {quoted(self.store)}",
            )
            self.away = True
            return False
        self.away, self.elsewhere = False, None
        return True
