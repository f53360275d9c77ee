"""What a broker tells whoever has started it as a service: systemd, or `penstock up --daemon`.

The protocol is sd_notify's: datagrams of `KEY=value` lines to the socket that the environment
names. Both starters hear the same words, so there is one way to know that a broker serves. This
file must not know what a broker does, and nothing here is worth an error of the broker: a starter
that has gone hears nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

SOCKET_KEY = "NOTIFY_SOCKET"
_WATCHDOG_KEY = "WATCHDOG_USEC"


class ServiceManager:
    """The one of this environment; where there is none, every word goes nowhere."""

    def __init__(self, environment: Mapping[str, str], now_ms: int) -> None:
        """`now_ms` is on the monotonic clock, here as in `alive`."""
        address = environment.get(SOCKET_KEY, "")
        # "@" stands for the zero byte with which an abstract address begins
        self._address = "\0" + address[1:] if address.startswith("@") else address
        timeout_us = environment.get(_WATCHDOG_KEY, "")
        # twice within the timeout, as sd_watchdog_enabled(3) advises
        self._alive_every_ms = int(timeout_us) // 2000 if timeout_us.isdigit() else 0
        self._alive_at_ms = now_ms

    def ready(self, status: str) -> None:
        """The broker serves; `status` is one line for people."""
        self._notify("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._notify(f"STATUS={status}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self, now_ms: int) -> None:
        """Called at each turn; says so as often as the manager wants to hear it."""
        if self._alive_every_ms and now_ms >= self._alive_at_ms:
            self._alive_at_ms = now_ms + self._alive_every_ms
            self._notify("WATCHDOG=1")

    def _notify(self, *lines: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        # it has gone, or does not listen: the broker serves all the same
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as peer:
            peer.sendto("\n".join(lines).encode(), self._address)
