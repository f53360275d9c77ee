"""Which run of a broker a client's requests are for, and whether that is still who answers.

By store a client names the run that the store's run.json named; by endpoint it names none, and
whoever answers is the one. `away` asks the driver to look where the broker is by now; `elsewhere`
is what another store's broker has said in its place. Pure.
"""

from __future__ import annotations

from penstock.shared.errors import WrongStore
from penstock.shared.wire.messages import ConsumeAnswer, ProduceAnswer, Refused


class Aim:
    """What one client aims at, and what it has heard from there."""

    __slots__ = ("run", "store", "away", "elsewhere")

    def __init__(self) -> None:
        self.run = self.store = ""
        self.away = False
        self.elsewhere: WrongStore | None = None

    def heard(self, answer: ProduceAnswer | ConsumeAnswer) -> bool:
        """Somebody has answered: whether it was the broker that is meant."""
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
