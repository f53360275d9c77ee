"""Memory that runs out: actors that get no more of it, and clients that want too much.

An actor without memory dies loudly and is replaced; nothing that it was doing is left half done.
What one request can make the broker hold is bounded.
"""

from __future__ import annotations

import random
import resource
import time
from signal import SIGKILL

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL_SEGMENT_BYTES, Broker
from penstock.chaos.load import TOPIC
from penstock.chaos.machine.usage import address_space_bytes, own_memory_bytes
from penstock.chaos.scene import Scene, scene
from penstock.shared.memory.roster import ACTORS
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

# in a round; the supervisor gives up after five failures in a minute
STARVED = 3
STARVE_S = 0.7
GREEDY, REQUESTS = 10, 20
# by this much an actor may still have grown after the greedy clients have gone
GROWN_BYTES = 64 << 20
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def memory_round(arena: Arena, dice: random.Random, replay: str) -> None:
    # an actor without memory must meet a segment that it has not mapped yet
    settings = any_settings(dice) | {"mapped_file_size_commit_log_bytes": SMALL_SEGMENT_BYTES}
    with arena.room() as room, scene(arena, room, settings, rate=500) as it:
        wrong = _check_greedy(it, dice)
        for actor in dice.sample(ACTORS, STARVED):
            starve(it, actor, dice)
        struck = time.monotonic()
        it.broker.strike(dice.choice(ACTORS), SIGKILL)  # as the kernel does when memory runs out
        it.arena.report.add_fault("out of memory: killed")
        it.probe("out of memory: killed", struck)
        it.finish(replay, wrong, may_fail=True)


def starve(it: Scene, actor: str, dice: random.Random) -> None:
    """Refuse an actor more address space for a while; a message must get through after that."""
    pid = it.broker.strike(actor, 0)
    try:
        room = dice.choice((0, 64 << 10, 1 << 20))
        limit = address_space_bytes(pid) + room
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        time.sleep(dice.uniform(0, STARVE_S))
        struck = time.monotonic()
        resource.prlimit(pid, resource.RLIMIT_AS, _UNLIMITED)
    except (ProcessLookupError, FileNotFoundError):
        struck = time.monotonic()  # the actor has died of it
    it.arena.report.add_fault("out of memory: refused")
    it.probe("out of memory: refused", struck)


def _check_greedy(it: Scene, dice: random.Random) -> list[str]:
    """Clients ask for as much as a request can; other clients must not notice, no memory stays."""
    broker = it.broker
    actors = {name: broker.actors()[name] for name in ("reader", "writer")}
    before = {name: own_memory_bytes(pid) for name, pid in actors.items()}
    greed(broker, dice)
    it.arena.report.add_fault("greedy request", 2 * GREEDY * REQUESTS)
    it.probe("greedy requests", time.monotonic())
    wrong = []
    for name, pid in actors.items():
        if broker.actors()[name] != pid:
            wrong.append(f"{name} did not survive greedy requests")
        elif (grown := own_memory_bytes(pid) - before[name]) > GROWN_BYTES:
            wrong.append(f"{name} keeps {grown >> 20} MiB of greedy requests")
    return wrong


def greed(broker: Broker, dice: random.Random) -> None:
    """Send requests of the largest kinds to both endpoints; no answer is read."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for endpoint in (broker.consume, broker.produce):
        for _ in range(GREEDY):
            peer = dial(context, endpoint)
            for number in range(1, REQUESTS + 1):
                if peer.poll(2000, zmq.POLLOUT):
                    peer.send_multipart(_greedy(number, dice))
            peer.close(linger=200)
    context.term()


def _greedy(number: int, dice: random.Random) -> list[bytes]:
    cursors = dict.fromkeys(range(dice.choice((1024, 60_000))), 0)
    return dice.choice(
        (
            [encode(messages.Pull(number, TOPIC, cursors, 0, 1 << 60, 30_000))],
            [encode(messages.Query(number, TOPIC, "K" * 200_000, 1 << 60, 0, 1 << 60, False))],
            [encode(messages.Hello(dice.getrandbits(61), number, 1, 0))],
            [encode(messages.Route(number, "t" * 500_000, True))],
            [dice.randbytes(900_000)],
            [b"x"] * 2000,
            [b"\x91" * 500_000],
        )
    )
