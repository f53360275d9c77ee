"""RocketMQ's own clients while gateway, coordinator and the whole broker are killed under them.

Half of them send, one message after the other; half are one group that handles what is sent. After
each strike every client has to continue by itself: a producer completes a send that it began after
the strike, a consumer handles a message sent after it. In the end all that was acknowledged was
handled, and is stored.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.clients.official import ACKED, FAILED, GOT, GROUP, TOPIC, Crew, Seen, crew
from penstock.chaos.history import lost
from penstock.client.groups.admin import GroupAdmin
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire.group_messages import GroupInfo

# in a round
STRIKES = 10
PRODUCERS, CONSUMERS, QUEUES = 10, 10, 40
STRUCK = {"gateway": 4, "coordinator": 3, "broker": 3}
# A client that has seen nothing by then has not continued by itself. It usually takes 1 to 3 s,
# which the report says. A busy machine takes longer to start a process: it counts as busy where
# this process has waited this long for its own turn.
LATEST_S, LATEST_BUSY_S, BUSY_S = 5.0, 10.0, 0.1
# Until the JVM has started and the group has divided the queues; until all messages are handled.
BEGIN_S, SETTLE_S = 120.0, 120.0
LOOK_S = 0.01
SHOWN = 3


class Verdict(NamedTuple):
    """What was struck, how long each client took to go on, and what is wrong."""

    struck: Counter[str]
    # (what was struck, seconds until the last producer continued, and until the last consumer did)
    went_on: list[tuple[str, float, float]]
    acknowledged: int
    failed: int
    handled: int
    wrong: list[str]


def official_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        struck = dice.choices(list(STRUCK), list(STRUCK.values()), k=STRIKES)
        found = run_official(room, any_settings(dice), struck, dice, arena.moved)
        for name, count in found.struck.items():
            arena.report.add_fault(f"{name} killed under RocketMQ's clients", count)
        for name, sent_s, handled_s in found.went_on:
            arena.report.add_recovery(f"RocketMQ's clients, {name} killed", sent_s, handled_s)
        arena.report.acknowledged += found.acknowledged
        arena.report.consumed += found.handled
        arena.report.add_violations(found.wrong, replay)


def run_official(
    place: Path,
    settings: Mapping[str, object],
    struck: Sequence[str],
    dice: random.Random,
    moved: Callable[[], None] = lambda: None,
) -> Verdict:
    """Strike these in turn. Raises PenstockError if clients are unavailable or have ended."""
    broker = Broker(place, {**settings, **fixed_ports(gateway=True)})
    try:
        broker.start()
        with Producer(store=broker.store) as producer:
            producer.create_topic(TOPIC, QUEUES)
        server = f"127.0.0.1:{broker.config.gateway_name_server_port}"
        with crew(server, place, producers=PRODUCERS, consumers=CONSUMERS) as clients:
            it = _Strikes(broker, clients)
            it.begin()
            for name in struck:
                time.sleep(dice.uniform(0, 0.5))  # a strike comes at a random moment
                it.strike(name)
                moved()
            it.settle()
        return it.verdict()
    finally:
        broker.clear()


class _Strikes:
    """Strikes at the broker of these clients, one after the other."""

    def __init__(self, broker: Broker, clients: Crew) -> None:
        self._broker, self._clients = broker, clients
        self._struck: Counter[str] = Counter()
        self._went_on: list[tuple[str, float, float]] = []
        self._wrong: list[str] = []
        self._seen: list[Seen] = []
        self._acked: set[str] = set()
        self._handled: set[str] = set()
        # the longest sleep between two looks
        self._longest_s = 0.0

    def begin(self) -> None:
        """Wait until all clients are at work and the queues are divided.

        A client that has to connect again while its group divides them may say what it wants of
        them only with its next heartbeat, up to 30 s later, whatever the broker does.
        """
        self.await_all(time.monotonic_ns(), BEGIN_S, BEGIN_S)
        until = time.monotonic() + BEGIN_S
        with GroupAdmin(store=self._broker.store) as groups:
            while not _is_divided(groups.describe(GROUP)):
                if time.monotonic() > until:
                    raise StoreUnavailable("the group has not divided its queues", GROUP)
                self._look()

    def strike(self, name: str) -> None:
        self._struck[name] += 1
        if name == "broker":
            self._broker.kill()
            # until now, messages from before the strike may have been answered
            struck_ns = time.monotonic_ns()
            self._broker.start()
        else:
            self._broker.strike(name, SIGKILL)
            struck_ns = time.monotonic_ns()
        self._went_on.append((name, *self.await_all(struck_ns, LATEST_S, LATEST_BUSY_S)))

    def await_all(self, since_ns: int, calm_s: float, busy_s: float) -> tuple[float, float]:
        """Wait until each client has seen a message that was sent since then.

        Returns the seconds until the last producer had, and the last consumer. It waits for
        `calm_s`, or for `busy_s` where the machine has been busy meanwhile.
        """
        first: dict[str, int] = {}
        began, self._longest_s = time.monotonic(), 0.0
        while missing := self._clients.clients.keys() - first.keys():
            timeout_s = busy_s if self._longest_s > BUSY_S else calm_s
            if time.monotonic() > began + timeout_s:
                self._wrong.append(
                    f"{len(missing)} clients have not gone on within {timeout_s:.0f} s: "
                    f"{sorted(missing)[:SHOWN]}"
                )
                break
            for each in self._look():
                if each.sent_ns >= since_ns and each.what == self._clients.clients[each.client]:
                    first.setdefault(each.client, each.at_ns)
        took = {ACKED: 0.0, GOT: 0.0}
        for name, what in self._clients.clients.items():
            took[what] = max(took[what], (first.get(name, since_ns) - since_ns) / 1e9)
        return took[ACKED], took[GOT]

    def _look(self) -> list[Seen]:
        slept = time.monotonic()
        time.sleep(LOOK_S)
        self._longest_s = max(self._longest_s, time.monotonic() - slept)
        found = self._clients.look()
        self._seen += found
        self._acked |= {each.body for each in found if each.what == ACKED}
        self._handled |= {each.body for each in found if each.what == GOT}
        return found

    def settle(self) -> None:
        """End the producers; all that was acknowledged must be handled, and stored."""
        self._clients.rest()
        until = time.monotonic() + SETTLE_S
        while not self._clients.is_resting or self._acked - self._handled:
            self._look()
            if time.monotonic() > until:
                break
        if not self._clients.is_resting:
            self._wrong.append("a producer has not ended")
        if missing := sorted(self._acked - self._handled):
            self._wrong.append(lost(len(missing), "which were acknowledged", missing))
        with Consumer(store=self._broker.store, topic=TOPIC, follow=False) as consumer:
            stored = {bytes(each.body).decode() for each in consumer}
        if missing := sorted(self._acked - stored):
            self._wrong.append(lost(len(missing), "which are not stored", missing))
        if missing := sorted(self._handled - stored):
            self._wrong.append(f"{len(missing)} were handled and are not stored: {missing[:SHOWN]}")

    def verdict(self) -> Verdict:
        failed = sum(each.what == FAILED for each in self._seen)
        return Verdict(
            self._struck, self._went_on, len(self._acked), failed, len(self._handled), self._wrong
        )


def _is_divided(group: GroupInfo) -> bool:
    owned = Counter(each.owner for each in group.queues if each.topic == TOPIC)
    return len(owned) == CONSUMERS and set(owned.values()) == {QUEUES // CONSUMERS}
