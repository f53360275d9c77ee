"""Which of this machine's addresses a producer's records name as theirs."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from penstock.shared.errors import ConnectError


def is_loopback(ip: bytes) -> bool:
    """Whether packets from this address come from the machine itself."""
    return ipaddress.ip_address(ip).is_loopback


def local_address(endpoint: str) -> bytes:
    """The address that packets to the endpoint leave from: 4 or 16 bytes. Sends nothing.

    Raises ConnectError for an endpoint that is none.
    """
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        return socket.inet_aton("127.0.0.1")
    try:
        if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
            raise ValueError("not tcp://HOST:PORT")
        family, _, _, _, address = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return socket.inet_pton(family, probe.getsockname()[0])
    except (ValueError, OSError) as error:
        raise ConnectError(
            "an endpoint is tcp://HOST:PORT or ipc://PATH",
            f"{endpoint}: {error}",
            "penstock up prints the endpoints",
        ) from None
