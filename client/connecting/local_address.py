"""Which of this machine's addresses a producer's records name as theirs."""

from __future__ import annotations

import ipaddress
import socket

from penstock.shared.errors import ConnectError
from penstock.shared.wire.endpoint import parse_endpoint


def is_loopback(ip: bytes) -> bool:
    """Whether packets from this address come from the machine itself."""
    return ipaddress.ip_address(ip).is_loopback


def local_address(endpoint: str) -> bytes:
    """The address that packets to the endpoint leave from: 4 or 16 bytes. Sends nothing.

    Raises InvalidArgument if the text is not an endpoint, and ConnectError.
    """
    parts = parse_endpoint(endpoint)
    if parts.path:
        return socket.inet_aton("127.0.0.1")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            parts.host, parts.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return socket.inet_pton(family, probe.getsockname()[0])
    except OSError as error:
        raise ConnectError(
            "this machine has no way to the broker's host",
            f"{endpoint}: {error.strerror}",
            "see that the endpoint is right and its machine can be reached",
        ) from None
