"""An endpoint as users write it: tcp://HOST:PORT or ipc://PATH. No name is resolved here.

Anything else raises InvalidArgument. If the intended endpoint can be guessed, the hint shows how to
write it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.shared.errors import InvalidArgument

EXAMPLE = "tcp://127.0.0.1:20911"
_LIKE_THIS = f"an endpoint looks like {EXAMPLE} or ipc:///PATH; `penstock up` prints its own"
# sockaddr_un has 108 bytes, of which one ends the path
MAX_IPC_PATH_BYTES = 107
# with these hosts a broker listens on all addresses of its machine
_ANY_HOST = ("*", "0.0.0.0", "::")


class Address(NamedTuple):
    """Where a socket connects: `host` and `port`, or the `path` of a socket file.

    If `path` is not empty, it counts and the others do not. An IPv6 host has no brackets here.
    """

    host: str = ""
    port: int = 0
    path: str = ""


def parse_endpoint(endpoint: object) -> Address:
    """The endpoint as an address. Raises InvalidArgument, also for what is not text: the argument
    comes straight from a client."""
    if not isinstance(endpoint, str):
        raise InvalidArgument("this endpoint is no text", repr(endpoint)[:80], _LIKE_THIS)
    scheme, found, rest = endpoint.partition("://")
    if not found:
        what = "this endpoint has no tcp:// or ipc://" if endpoint else "this endpoint is empty"
        raise InvalidArgument(what, repr(endpoint), _meant(endpoint))
    if scheme == "ipc":
        return _ipc(endpoint, rest)
    if scheme != "tcp":
        hint = _meant(rest.rstrip("/")) if rest else _LIKE_THIS
        raise InvalidArgument(f"{scheme or 'nothing'} is no scheme of an endpoint", endpoint, hint)
    return _tcp(endpoint)


def at_port(endpoint: str, other: str) -> str:
    """The port of `other`, an endpoint as the broker knows it, on the host of `endpoint`.

    The host on which a broker listens, 0.0.0.0 for example, is not where its clients find it. So
    the host that has answered counts; a socket file has none, and its broker is on this machine.
    """
    here = parse_endpoint(endpoint)
    host, _, port = other.removeprefix("tcp://").rpartition(":")
    listens = host.strip("[]")
    local = "127.0.0.1" if listens in _ANY_HOST else listens
    return shown(Address(here.host or local, int(port)))


def shown(address: Address) -> str:
    """An address as an endpoint, with an IPv6 host in brackets; `parse_endpoint` reverses it."""
    if address.path:
        return f"ipc://{address.path}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"tcp://{host}:{address.port}"


def _ipc(endpoint: str, path: str) -> Address:
    if not path:
        raise InvalidArgument("this endpoint has no path", endpoint, _LIKE_THIS)
    # in bytes, as the kernel counts
    if (size := len(os.fsencode(path))) > MAX_IPC_PATH_BYTES:
        raise InvalidArgument(
            "this endpoint's path is too long for a socket",
            f"{size} bytes, {MAX_IPC_PATH_BYTES} are the most",
            "connect to the broker's tcp:// endpoint",
        )
    return Address(path=path)


def _tcp(endpoint: str) -> Address:
    from urllib.parse import urlsplit  # here, as clients that name a store do not need it

    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        # -1 stands for a port that is written but invalid; None for one that is not written
        parts, host, port = urlsplit("tcp://"), "", -1
    # urlsplit raises for a port that is not a 16-bit number, and takes an IPv6 address without
    # brackets for a host with something like a port: the colons tell the two apart.
    written = endpoint.removeprefix("tcp://")
    if port == -1 or host and port is None and written.count(":") > 1 and "[" not in written:
        what = "this endpoint's port is none"
        head, _, tail = written.rpartition(":")
        if head.count(":") > 1 or not tail.isdigit() and ":" in head:
            what = "an IPv6 address in this endpoint is not in brackets"
        elif tail.isdigit():
            what = "there is no such port; the highest is 65535"
        raise InvalidArgument(what, endpoint, _LIKE_THIS)
    if not host:
        raise InvalidArgument("this endpoint has no host", endpoint, _LIKE_THIS)
    if host in _ANY_HOST:
        raise InvalidArgument(
            "a broker can listen on this host, and no client can connect to it",
            endpoint,
            f"connect to tcp://127.0.0.1:{port or 20911}, or to the broker's own address",
        )
    if port is None:
        raise InvalidArgument(
            "this endpoint has no port",
            endpoint,
            f"{shown(Address(host, 20911))} if the broker has the default ports",
        )
    if port == 0:
        raise InvalidArgument("nobody listens on port 0", endpoint, _LIKE_THIS)
    # Last, since the hint repeats host and port: here both are known to be right.
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise InvalidArgument(
            "this endpoint has more than a host and a port",
            endpoint,
            f"write {shown(Address(host, port))}",
        )
    return Address(host, port)


def _meant(text: str) -> str:
    """A hint for an endpoint that was written without a scheme, or with a wrong one.

    A path is taken for a store's.
    """
    host, _, port = text.partition("/")[0].rpartition(":")
    if host and port.isdigit() and 0 < int(port) <= 65535:
        return f"write tcp://{host}:{port}"
    if text.startswith(("/", ".", "~")):
        return f'a store is named by its own argument: store="{text}"'
    return _LIKE_THIS
