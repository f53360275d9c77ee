"""What each peer's file offers, and what it is asked for. Knows no broker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

DURABLE, WRITTEN = "durable", "written"


class Load(msgspec.Struct, frozen=True):
    """One load: bodies of `size` bytes for `seconds`, into a new topic with `queues` queues."""

    topic: str
    size: int
    ack: str
    in_flight: int
    queues: int
    seconds: float
    warm_s: float
    batch: int = 1


class Server(msgspec.Struct, frozen=True):
    """A running broker: its processes by name, and what its clients are told."""

    pids: Mapping[str, int]
    told: Mapping[str, str]


class Variant(msgspec.Struct, frozen=True):
    """A way to send: the name of its row, and how many messages are one batch."""

    name: str
    batch: int = 1


class Peer(Protocol):
    """A broker that can be measured. Everything it does stays in the place it is given."""

    name: str
    client: str
    # how long a new client sends before it is measured: Java's are compiled meanwhile
    warm_s: float
    variants: tuple[Variant, ...]
    # how it is set up for each kind of acknowledgement that it has
    settings: dict[str, str]

    def version(self) -> str:
        """Its version, once all that it needs is here; builds what must be built.

        Raises MissingDependency with what to install.
        """
        ...

    def serve(self, place: Path, ack: str) -> AbstractContextManager[Server]:
        """The broker, acknowledging as `ack` says, until the block is left.

        Raises MissingDependency where what is installed cannot.
        """
        ...

    def command(self, server: Server, load: Load) -> list[str]:
        """The command of a load process (see bench/load.py)."""
        ...
