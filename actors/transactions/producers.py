"""Producers of transactions that can be asked: who is connected, and whose turn it is.

A producer reports every HEARTBEAT_MS that it is there. One that is silent, or to which nothing can
be sent, is no longer asked. How to send is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock.shared.errors import StoreUnavailable

HEARTBEAT_MS = 5000
SILENT_MS = 3 * HEARTBEAT_MS
# Producers that are tried with one question, as in RocketMQ.
TRIES = 3
MAX_PRODUCERS = 100_000


class Producers:
    """Group -> its producers, by connection; the next to be asked first."""

    def __init__(self) -> None:
        self._groups: dict[str, OrderedDict[bytes, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def register(self, group: str, peer: bytes, now_ms: int) -> None:
        """The producer is there. Raises StoreUnavailable if there are too many."""
        peers = self._groups.get(group)
        if peers is None or peer not in peers:
            if self._count >= MAX_PRODUCERS:
                raise StoreUnavailable(
                    f"more than {MAX_PRODUCERS} producers of transactions are registered",
                    group,
                    "close some that are not needed",
                )
            peers = self._groups.setdefault(group, OrderedDict())
            self._count += 1
        peers[peer] = now_ms  # it keeps its turn

    def ask(self, group: str, now_ms: int, send: Callable[[bytes], bool]) -> bool:
        """Ask the next one that can be asked; whether there was one."""
        peers = self._groups.get(group, OrderedDict())
        for _ in range(min(TRIES, len(peers))):
            peer = next(iter(peers))
            if now_ms - peers[peer] <= SILENT_MS and send(peer):
                peers.move_to_end(peer)
                return True
            self._drop(group, peer)
        return False

    def drop_silent(self, now_ms: int) -> None:
        """To be called now and then."""
        for group, peers in list(self._groups.items()):
            for peer, seen_ms in list(peers.items()):
                if now_ms - seen_ms > SILENT_MS:
                    self._drop(group, peer)

    def _drop(self, group: str, peer: bytes) -> None:
        peers = self._groups[group]
        del peers[peer]
        self._count -= 1
        if not peers:
            del self._groups[group]
