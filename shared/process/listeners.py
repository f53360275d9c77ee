"""The listening sockets of a broker's endpoints: opened by the supervisor, inherited by the actors.

They outlive the actor that serves them. While it is replaced, a client's connection waits in the
kernel instead of being refused, and no other process can take the port. Not even a client can: TCP
connects a client to itself when its own port happens to be the one it connects to.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
from pathlib import Path
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, PortTaken
from penstock.shared.memory.roster import ACTORS, row_of

# Connections that wait to be accepted; fewer where the process may open few files.
_MOST_WAITING, _LEAST_WAITING = 1024, 8
_MONITOR = "the monitor"


def backlog() -> int:
    """How many connections may wait at one socket.

    An eighth of the soft limit of open files, which a start has raised to the hard one. An actor
    has two such sockets and needs a file for each waiting connection: a quarter of its files.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(files // 8, _LEAST_WAITING), _MOST_WAITING)


# the clients that an error names for the gateway's ports
GATEWAY_CLIENTS = "clients of RocketMQ"


class Listener(NamedTuple):
    """One endpoint, as clients name it, and the socket that listens there."""

    endpoint: str
    socket: socket.socket


def listen_tcp(bind_host: str, port: int, clients: str = "clients") -> Listener:
    """Listen on TCP. Port 0 is any free one; errors name these `clients`.

    Raises PortTaken with the port's owner, and ConfigError for an address that this machine lacks.
    """
    version = ipaddress.ip_address(bind_host).version
    host = f"[{bind_host}]" if version == 6 else bind_host
    listener = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET)
    # Otherwise the old connections of a broker that has just ended would keep the port taken.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind_host, port))
        listener.listen(backlog())
    except OSError as error:
        listener.close()
        raise _refused(bind_host, port, f"{host}:{port}", clients, error) from None
    return Listener(f"tcp://{host}:{listener.getsockname()[1]}", listener)


def _refused(bind_host: str, port: int, where: str, clients: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        # imported here: most starts get their ports
        from penstock.shared.process.port_owner import port_owner

        return PortTaken(
            f"the port for {clients} is taken",
            f"{where}: {port_owner(bind_host, port) or 'by whom cannot be seen from here'}",
            "stop that one, or take any free ports: penstock up --port auto",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"this machine has no such address to listen on for {clients}",
            where,
            "set bind_host to one of its addresses, or to 0.0.0.0 for all",
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"this user may not listen on the port for {clients}",
            f"{where}: {error.strerror}",
            "choose a port from 1024 on, or take any free ones: penstock up --port auto",
        )
    return ConfigError(f"nobody can listen there for {clients}", f"{where}: {error.strerror}")


def listen_ipc(path: Path) -> Listener:
    """Listen on a socket file, which is for this user only. Raises OSError.

    For a process with one thread: the umask that it changes meanwhile is the whole process's.
    """
    listener = socket.socket(socket.AF_UNIX)
    # not a chmod afterwards: others could connect before it
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
        """Called in the actor: close what others serve. Returns endpoint -> descriptor of the rest.

        A socket listens until its last copy is closed. If one were left here, clients of an actor
        that was stopped would wait instead of being refused.
        """
        for other in ACTORS:
            if other != actor:
                self.close_for(other)
        return self.handles

    @property
    def handles(self) -> dict[str, int]:
        """endpoint -> descriptor."""
        return {each.endpoint: each.socket.fileno() for each in self._listeners.values()}

    def close_for(self, actor: str) -> None:
        """Stop listening for this actor: clients are refused from now on.

        The supervisor calls it once the actor has stopped for good; calling it twice is harmless.
        """
        for name in row_of(actor).serves:
            if name in self._listeners:
                self._listeners.pop(name).socket.close()

    def close(self) -> None:
        """Close what is left, whoever serves it."""
        for actor in ACTORS:
            self.close_for(actor)


class MonitorPort(NamedTuple):
    """The monitor's listener by its name in `Endpoints`, if there is one, and what a start reports
    about it. A broker also starts without one."""

    listeners: dict[str, Listener]
    remark: str = ""


def listen_for_monitor(config: Config) -> MonitorPort:
    """Listen where the configuration says, else at any free port, else nowhere. Never raises."""
    if not config.monitor_enable:
        return MonitorPort({})
    try:
        return _found(config, config.monitor_port)
    except PortTaken as taken:
        remark = f"{taken.what}: {taken.value}"
    except ConfigError as error:
        return MonitorPort({}, f"there is no monitor; {error.what}: {error.value}")
    try:
        found = _found(config, 0)
    except ConfigError as error:
        return MonitorPort({}, f"there is no monitor; {error.what}: {error.value}")
    return found._replace(remark=f"{remark}; it is at {found.listeners['monitor'].endpoint}")


def _found(config: Config, port: int) -> MonitorPort:
    listener = listen_tcp(config.monitor_host, port, _MONITOR)
    listener.socket.setblocking(False)
    endpoint = listener.endpoint.replace("tcp://", "http://", 1)
    return MonitorPort({"monitor": listener._replace(endpoint=endpoint)})
