"""The pipeline and its actors as they are now: positions, distances, life. Asks nobody.

Positions are read one after the other, so a later stage may seem ahead of an earlier one; a
distance is never below 0. An unknown number is None, and never 0.
"""

from __future__ import annotations

import os
from typing import Any

from penstock.actors.monitor.history import History
from penstock.actors.monitor.reading import Reading
from penstock.shared.memory.positions import POSITIONS, STAGES, Positions
from penstock.shared.memory.roster import ROSTER, ActorRow, row_of

ERRORS = tuple(position.name for position in POSITIONS if position.unit == "errno")
# Messages pass them in this order; what is not in STAGES serves what the stages have done.
PIPELINE = (*STAGES, "reader")


def overview(reading: Reading, history: History) -> dict[str, Any]:
    """Everything on the first screen, as JSON values."""
    positions, now_ms = reading.positions, reading.clock.monotonic_ms()
    last = history.last
    return {
        "store": str(reading.paths.root.resolve()),
        "broker": reading.config.broker_name,
        "started_ms": reading.run.started_ms,
        "now_ms": reading.clock.now_ms(),
        "endpoints": {
            name: getattr(reading.run.endpoints, name)
            for name in ("produce", "consume", "group", "transaction", "remoting")
        },
        "log": {"start": positions["log_start"], "end": positions["wrote"]},
        "messages": reading.queues.message_count,
        "queues": positions["queue_count"] - positions["deleted_queues"],
        "topics": None if (topics := reading.topic_names()) is None else len(topics),
        "groups": None if (groups := reading.group_names()) is None else len(groups),
        "rates": None if last is None else last._asdict(),
        "actors": [_actor(row, positions, history, now_ms) for row in ROSTER],
        "pipeline": PIPELINE,
        "waiting_pulls": positions["waiting_pulls"] + positions["filtered_pulls"],
        "pending_delayed": positions["pending_delayed"],
        "transactions_open": positions["transactions_open"],
        "problems": problems(reading, now_ms),
    }


def _actor(row: ActorRow, positions: Positions, history: History, now_ms: int) -> dict[str, Any]:
    life = positions.life(row.name)
    name = STAGES.get(row.name)
    at = None if name is None else positions[name]
    return {
        "name": row.name,
        "state": life.state,
        "pid": life.pid or None,
        "generation": life.generation,
        "restarts": life.restarts,
        "heartbeat_age_ms": heartbeat_age_ms(positions, row.name, now_ms),
        "cycles": life.cycles,
        "unreadable_pages": life.unreadable_pages,
        "notifies": row.notifies,
        "position": name,
        "at": at,
        "behind_bytes": None if at is None else max(0, positions["wrote"] - at),
        "behind_ms": None if at is None else history.late_ms(at, now_ms),
    }


def heartbeat_age_ms(positions: Positions, actor: str, now_ms: int) -> int | None:
    """None if the actor has not beaten yet in this life."""
    life = positions.life(actor)
    if not life.generation or life.beating_generation != life.generation:
        return None
    return max(0, now_ms - life.heartbeat_ms)


def problems(reading: Reading, now_ms: int) -> list[str]:
    """Why the broker is not healthy, one sentence for each reason."""
    positions, found = reading.positions, []
    for row in ROSTER:
        life = positions.life(row.name)
        if life.state == "off" or row.is_spare:
            continue
        age_ms = heartbeat_age_ms(positions, row.name, now_ms)
        if not life.pid or life.state not in ("running", "stopping"):
            found.append(f"{row.name} is {life.state}")
        elif age_ms is None or age_ms > reading.config.actor_stall_timeout_ms:
            found.append(f"{row.name} does not move")
    for name in ERRORS:
        # a failed mlock leaves pages unlocked, which costs time and nothing else
        if positions[name] and name != "lock_error":
            found.append(f"{name}: {os.strerror(positions[name])}")
    if positions["read_only"]:
        found.append("the log is damaged, so no message is taken")
    return found


def refusals(reading: Reading) -> list[str]:
    """Why a healthy broker takes no message."""
    full = reading.positions["disk_full"]
    return [f"the disk is {full} % full, so no message is taken"] if full else []


assert all(row_of(name) for name in PIPELINE), "a stage is an actor"
