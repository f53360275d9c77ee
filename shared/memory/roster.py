"""The roster: every actor there is, a row each. Whatever has to know the actors reads this table.

The positions page takes its lines from it, and the doorbells their connections. The supervisor
learns what to start and stop, and in which order, and which actor keeps which listening socket. So
a new actor is one row here and one module. Classes are named as text, because their modules import
this file: whatever starts actors imports them.
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
    # the actors that it wakes by doorbell
    notifies: tuple[str, ...] = ()
    # the fields of `Endpoints` whose listening sockets it inherits
    serves: tuple[str, ...] = ()
    # Whether a durable message needs it for its acknowledgement: a start imports it while the store
    # is opened, and all others after these have been forked.
    acknowledges: bool = False
    # Importing numpy takes as long as the rest of a start, so actors with it come after the others.
    needs_numpy: bool = False
    # the configuration key that switches it on; "": it always runs
    enabled_by: str = ""
    # Whether a broker is ready only when it works. If not, it is imported and started after that;
    # who connects sooner waits in the kernel, for the sockets are there before any actor.
    is_awaited: bool = True
    # Whether it may fail any number of times: sending and reading do not need it.
    is_spare: bool = False


# In the order in which `penstock status` shows them.
#
# The actors that an acknowledgement needs start first, and those that need numpy last: the others
# start on one core while another core imports it. All could start at once, for each finds what it
# needs in shared memory.
#
# Actors stop from upstream to downstream, so that each can finish what it was given. The flusher is
# last of these: it makes the queues durable that the reput writes until its own end. The cleaner
# stops before the writer, because nobody waits for what it deletes.
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
    # No doorbell wakes it: it may follow the log a tick late, and clients have sockets.
    ActorRow(
        "transactions",
        "penstock.actors.transactions:Transactions",
        start_rank=6,
        stop_rank=-1,
        serves=("transaction", "transaction_ipc"),
    ),
    # A tick late is early enough: messages that wait are due at least a second after they are
    # stored, and those that were due already may come late.
    ActorRow(
        "scheduler",
        "penstock.actors.scheduler:Scheduler",
        start_rank=10,
        stop_rank=-2,
        needs_numpy=True,
    ),
    # The first data actor to stop: what it has taken from clients goes through all the others.
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
    # No doorbell wakes it: it looks at every tick.
    ActorRow("cleaner", "penstock.actors.cleaner:Cleaner", start_rank=7, stop_rank=0),
    # No doorbell wakes it: it looks when it is asked, and once a second.
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
