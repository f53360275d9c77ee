"""What a broker tells the program that started it as a service: systemd, or `penstock up --daemon`.

The protocol is sd_notify's: datagrams of `KEY=value` lines to the socket that the environment
names. Both starters hear the same, so there is only one way to learn that a broker serves. This
file must not know what a broker does, and must never fail the broker: if the starter is gone, the
message is dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

SOCKET_KEY = "NOTIFY_SOCKET"
_WATCHDOG_KEY = "WATCHDOG_USEC"


class ServiceManager:
    """The service manager that the environment names; without one, messages are dropped."""

    def __init__(self, environment: Mapping[str, str], now_ms: int) -> None:
        """`now_ms` is monotonic time, as in `alive`."""
        address = environment.get(SOCKET_KEY, "")
        # "@" stands for the zero byte with which an abstract address begins
        self._address = "\0" + address[1:] if address.startswith("@") else address
        timeout_us = environment.get(_WATCHDOG_KEY, "")
        # twice per timeout, as sd_watchdog_enabled(3) advises
        self._alive_every_ms = int(timeout_us) // 2000 if timeout_us.isdigit() else 0
        self._alive_at_ms = now_ms

    def ready(self, status: str) -> None:
        """Say that the broker serves. `status` is one line for people."""
        self._notify("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._notify(f"STATUS={status}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self, now_ms: int) -> None:
        """Say that the broker is alive. Called at each turn, it sends as often as was asked for."""
        if self._alive_every_ms and now_ms >= self._alive_at_ms:
            self._alive_at_ms = now_ms + self._alive_every_ms
            self._notify("WATCHDOG=1")

    def _notify(self, *lines: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        # if the manager is gone or does not listen, the broker still serves
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as peer:
            peer.sendto("\n".join(lines).encode(), self._address)
