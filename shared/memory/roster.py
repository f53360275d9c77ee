"""The roster: every actor there is, a row each. Whatever has to know the actors reads this table.

The positions page takes its lines from it, the doorbells their wiring, the supervisor what it
starts and stops and in which order, the listening sockets who keeps them. So a new actor is one row
here and one module. The classes are named as text, because this file lies far below them: whoever
starts actors imports them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.shared.config import Config


class ActorRow(NamedTuple):
    """One actor. Ranks order actors among themselves: the lowest is started, or stopped, first."""

    name: str
    # "module:class", as entry points are written
    code: str
    start_rank: int
    stop_rank: int
    # whose doorbell it uses
    notifies: tuple[str, ...] = ()
    # the fields of `Endpoints` whose listening sockets it inherits
    serves: tuple[str, ...] = ()
    # Whether no durable message is acknowledged without it: a start imports it while the store is
    # opened, and all others when these have been forked.
    acknowledges: bool = False
    # Its import takes as long as the rest of a start, so actors with it come after the others.
    needs_numpy: bool = False
    # the key of the configuration without which it does not run; "": it always does
    enabled_by: str = ""
    # Whether a broker is ready only when it works. Another one is imported and started after that;
    # who connects sooner waits in the kernel, for the sockets are there before any actor.
    is_awaited: bool = True
    # Whether it may fail as often as it likes: nobody who sends or reads needs it.
    is_spare: bool = False


# In the order in which `penstock status` shows them.
#
# Started first are those that an acknowledgement needs, and last those that need numpy: the others
# start on one core while it is imported on another. All could start at once, for each finds what
# it has to know in shared memory.
#
# Stopped upstream first, so that each can finish what it was given. The flusher is last: it makes
# the queues durable that the reput writes until its own end. The cleaner is first, because nobody
# waits for what it deletes.
ROSTER = (
    ActorRow(
        "allocator",
        "penstock.actors.allocator:Allocator",
        start_rank=4,
        stop_rank=3,
        notifies=("writer",),  # there is room again
    ),
    ActorRow(
        "writer",
        "penstock.actors.writer:Writer",
        start_rank=1,
        stop_rank=2,
        # `wrote` moved; a new segment was entered; topics have changed
        notifies=("committer", "allocator", "reader", "gateway", "reput", "coordinator"),
        serves=("produce", "produce_ipc"),
        acknowledges=True,
    ),
    ActorRow(
        "committer",
        "penstock.actors.committer:Committer",
        start_rank=2,
        stop_rank=4,
        notifies=("flusher", "reput"),  # `committed` moved
        acknowledges=True,
    ),
    ActorRow(
        "flusher",
        "penstock.actors.flusher:Flusher",
        start_rank=3,
        stop_rank=7,
        notifies=("writer", "reput", "reader", "gateway"),  # `flushed` moved
        acknowledges=True,
    ),
    ActorRow(
        "reput",
        "penstock.actors.reput:Reput",
        start_rank=8,
        stop_rank=5,
        # consume queues grew
        notifies=("reader", "gateway", "coordinator", "transactions", "scheduler"),
        needs_numpy=True,
    ),
    ActorRow(
        "reader",
        "penstock.actors.reader:Reader",
        start_rank=9,
        stop_rank=6,
        serves=("consume", "consume_ipc"),
        needs_numpy=True,
    ),
    # It puts nothing into the log.
    ActorRow(
        "coordinator",
        "penstock.actors.coordinator:Coordinator",
        start_rank=5,
        stop_rank=1,
        serves=("group", "group_ipc"),
    ),
    # What it follows may be a tick late, and clients have sockets.
    ActorRow(
        "transactions",
        "penstock.actors.transactions:Transactions",
        start_rank=6,
        stop_rank=-1,
        serves=("transaction", "transaction_ipc"),
    ),
    # Messages that wait are due at least a second after they are stored, and what was due already
    # may be a tick late.
    ActorRow(
        "scheduler",
        "penstock.actors.scheduler:Scheduler",
        start_rank=10,
        stop_rank=-2,
        needs_numpy=True,
    ),
    # First of all to stop: what it has taken from clients goes through all the others.
    ActorRow(
        "gateway",
        "penstock.actors.gateway:Gateway",
        start_rank=11,
        stop_rank=-3,
        serves=("name_server", "remoting", "remoting_vip"),
        enabled_by="gateway_enable",
        needs_numpy=True,
        is_awaited=False,
    ),
    # Nobody notifies it: it looks at every tick.
    ActorRow("cleaner", "penstock.actors.cleaner:Cleaner", start_rank=7, stop_rank=0),
    # Nobody notifies it: it looks when it is asked, and once a second.
    ActorRow(
        "monitor",
        "penstock.actors.monitor:Monitor",
        start_rank=12,
        stop_rank=-4,
        serves=("monitor",),
        needs_numpy=True,
        enabled_by="monitor_enable",
        is_awaited=False,
        is_spare=True,
    ),
)

ACTORS = tuple(row.name for row in ROSTER)
_BY_NAME = {row.name: row for row in ROSTER}

assert len(_BY_NAME) == len(ROSTER), "an actor has one row"
assert {whom for row in ROSTER for whom in row.notifies} <= {*ACTORS}, "doorbells lead to actors"
assert len({each for row in ROSTER for each in row.serves}) == sum(
    len(row.serves) for row in ROSTER
), "an endpoint has one actor"


def row_of(actor: str) -> ActorRow:
    return _BY_NAME[actor]


def start_order(config: Config | None = None) -> tuple[str, ...]:
    """The actors that a broker of this configuration has; without one, all."""
    rows = [row for row in ROSTER if _is_wanted(row, config)]
    return tuple(row.name for row in sorted(rows, key=lambda row: row.start_rank))


def stop_order(config: Config | None = None) -> tuple[str, ...]:
    """The same, in the order in which they stop."""
    rows = [row for row in ROSTER if _is_wanted(row, config)]
    return tuple(row.name for row in sorted(rows, key=lambda row: row.stop_rank))


def _is_wanted(row: ActorRow, config: Config | None) -> bool:
    return config is None or not row.enabled_by or bool(getattr(config, row.enabled_by))
