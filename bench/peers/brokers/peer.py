"""What each peer's file offers, and the loads that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

DURABLE, WRITTEN = "durable", "written"
# what is measured: sends at full rate, sends one by one with few unanswered, reading a backlog, and
# sending at a pace while another process reads
PACKED, SINGLE, CONSUME, PACED = "packed", "single", "consume", "paced"


class Load(msgspec.Struct, frozen=True):
    """One load: bodies of `size` bytes for `seconds`, into a new topic with `queues` queues.

    With `threads`, each thread sends a message and waits for its answer, again and again. With
    `messages`, that number is sent before it is ready, and stays: a backlog. With `rate_per_s`,
    each message is sent when it is due, and read; a latency is the time from due until read.
    """

    topic: str
    size: int
    ack: str
    in_flight: int
    queues: int
    seconds: float
    warm_s: float
    batch: int = 1
    threads: int = 0
    messages: int = 0
    rate_per_s: int = 0


class Read(msgspec.Struct, frozen=True):
    """One load: a topic's backlog from its beginning, again and again for `seconds`.

    Each pass must find all `messages`. The length and the last byte of every body are added up, and
    the sum must be that of what was sent. With `direct` the client may read the broker's files.
    """

    topic: str
    size: int
    messages: int
    queues: int
    seconds: float
    warm_s: float
    direct: bool = True
    bodies: bool = False


class Server(msgspec.Struct, frozen=True):
    """A running broker: its processes by name, and what its clients are told."""

    pids: Mapping[str, int]
    told: Mapping[str, str]


class Way(msgspec.Struct, frozen=True):
    """A way to send or to read: the name of its row, what it is measured for, and how it is done.

    `batch` messages are sent as one, with at most `in_flight` unanswered (0: as many as planned).
    """

    name: str
    kind: str = PACKED
    batch: int = 1
    in_flight: int = 0
    threads: int = 0
    rate_per_s: int = 0
    acks: tuple[str, ...] = (DURABLE, WRITTEN)
    direct: bool = True
    # read bodies alone
    bodies: bool = False


class Peer(Protocol):
    """A broker that can be measured. Everything it does stays in the place that it is given."""

    name: str
    client: str
    # how long a new client sends before it is measured: the JVM compiles Java clients meanwhile
    warm_s: float
    ways: tuple[Way, ...]
    # the settings for each kind of acknowledgement that it supports
    settings: dict[str, str]

    def version(self) -> str:
        """Its version, once everything that it needs is here; builds what must be built.

        Raises MissingDependency with what to install.
        """
        ...

    def serve(self, place: Path, ack: str) -> AbstractContextManager[Server]:
        """The broker, acknowledging as `ack` says, until the block ends.

        Raises MissingDependency if what is installed cannot do that.
        """
        ...

    def command(self, server: Server, load: Load | Read) -> list[str]:
        """The command of a load process (see bench/loads/load.py)."""
        ...
