"""The listening sockets of a broker's endpoints: opened by the supervisor, inherited by the actors.

They outlive the actor that serves them. While it is replaced, a client's connection waits in the
kernel instead of being refused, and nobody else can take the port meanwhile; not even the client,
whom TCP connects to itself when it draws the port it knocks at as its own.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import PortTaken

# Connections that wait to be taken; fewer where few files may be open.
_MOST_WAITING, _LEAST_WAITING = 1024, 8

# actor -> the endpoints it serves
SERVED_BY = {"writer": ("produce", "produce_ipc"), "reader": ("consume", "consume_ipc")}


def backlog() -> int:
    """How many connections may wait at one socket."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(files // 8, _LEAST_WAITING), _MOST_WAITING)


class Listener(NamedTuple):
    """One endpoint and the socket that listens there."""

    endpoint: str
    socket: socket.socket


def listen_tcp(bind_host: str, port: int, default_port: int) -> tuple[Listener, str]:
    """Listen on TCP; also a remark, when the default port was taken and another one is used."""
    version = ipaddress.ip_address(bind_host).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    host = f"[{bind_host}]" if version == 6 else bind_host
    for candidate in (port, 0) if port == default_port else (port,):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bind_host, candidate))
            listener.listen(backlog())
        except OSError as error:
            listener.close()
            refused = error.strerror
            continue
        chosen = listener.getsockname()[1]
        remark = f"port {port} is taken; using {chosen}" if candidate != port else ""
        return Listener(f"tcp://{host}:{chosen}", listener), remark
    raise PortTaken(
        "the address cannot be listened on",
        f"{host}:{port}: {refused}",
        "choose another port, or 0 for any free one: penstock up --produce-port 0 --consume-port 0",
    )


def listen_ipc(path: Path) -> Listener:
    """Listen on a socket file, which is for this user only."""
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(backlog())
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return Listener(f"ipc://{path}", listener)


class Listeners:
    """All listening sockets of a broker, by the names of `Endpoints`."""

    def __init__(self, listeners: dict[str, Listener]) -> None:
        self._listeners = listeners

    def keep_for(self, actor: str) -> dict[str, int]:
        """In the actor: close what others serve; endpoint -> descriptor of the rest."""
        for other in SERVED_BY:
            if other != actor:
                self.close_for(other)
        return {each.endpoint: each.socket.fileno() for each in self._listeners.values()}

    def close_for(self, actor: str) -> None:
        """Listen no longer for this actor: clients are refused from now on."""
        for name in SERVED_BY.get(actor, ()):
            if name in self._listeners:
                self._listeners.pop(name).socket.close()

    def close(self) -> None:
        for actor in SERVED_BY:
            self.close_for(actor)
