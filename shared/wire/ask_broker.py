"""Asking what listens at an endpoint, before anything is sent there.

    resolve the name -> connect -> ZMTP's greeting -> Greet -> Greeted

It uses a plain socket and not one of ZeroMQ's. ZeroMQ reports neither that nobody listens nor what
another server said; it keeps trying. Here each step that fails has its own error, and a server of
another protocol is recognised by its first words. ZMTP is the protocol on ZeroMQ's connections (RFC
23). This is the beginning of a DEALER's side of it, and one message in either direction.

Times: a refused connection is reported at once, a silent peer after twice SILENCE_MS. A peer that
speaks ZMTP gets all of `timeout_ms`: ZeroMQ's thread sends a ROUTER's greeting, while the answer
needs the process, which may be held up. A peer that does not accept the connection gets as long,
since a broker at its limit of connections leaves new ones waiting. A connection that breaks is made
again meanwhile, since replacing an actor breaks all of its connections.
"""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from penstock.shared.errors import BrokerTimeout, ConnectError
from penstock.shared.wire.endpoint import Address, parse_endpoint, shown
from penstock.shared.wire.introduction import PROTOCOL, Greet, Greeted, decode_greeted, encode

# A ZeroMQ peer speaks first. One that is silent for this long speaks another protocol; then it gets
# the same time again to say which.
SILENCE_MS = 1200
AGAIN_MS = 50
# ZMTP 3.0: the greeting with its mechanism (NULL: no security), then the one command that each side
# sends in a handshake of that mechanism.
_SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
_GREETING = _SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
# the bits of a frame's first byte
_MORE, _LONG, _COMMAND = 1, 2, 4
# Far above any answer to Greet: another program may claim any length, and we do not allocate it.
_MAX_FRAME_BYTES = 1 << 16
# Servers that wait for a line answer this with an error that identifies them.
_NUDGE = b"\r\n\r\n"
# Servers by their first bytes, with the words for an error. The first that fits is taken.
_KNOWN = (
    (b"HTTP/", "an HTTP server"),
    (b"<", "an HTTP server"),
    (b"-ERR", "Redis, or a server of its protocol,"),
    (b"-DENIED", "Redis in protected mode"),
    (b"\x15\x03", "a TLS server"),
    (b"SSH-", "an SSH server"),
    (b"AMQP", "an AMQP broker"),
    (b"INFO {", "a NATS server"),
    (b"220 ", "a mail or FTP server"),
)
# Nothing listens on the port, or there is no such socket file.
_NOT_THERE = {errno.ECONNREFUSED, errno.ENOENT}


class NobodyThere(ConnectError):
    """Nobody listens there, or the name is unknown: that may change when a broker starts."""


class _Broken(Exception):
    """The connection ended before there was an answer."""


def ask_broker(endpoint: str, timeout_ms: int) -> Greeted:
    """The broker that listens there. Raises InvalidArgument, ConnectError and BrokerTimeout.

    It blocks for about `timeout_ms` at most, not counting the time to resolve a name.
    """
    return meet_broker(endpoint, timeout_ms)[0]


def meet_broker(endpoint: str, timeout_ms: int) -> tuple[Greeted, str]:
    """The broker that listens there, and the endpoint at which ZeroMQ reaches it.

    They differ for a name with addresses of both kinds, such as localhost on many machines. ZeroMQ
    would try only the first IPv6 address, forever; this endpoint has the address that answered.
    """
    address = parse_endpoint(endpoint)
    began = time.monotonic()
    deadline = began + timeout_ms / 1000
    # replacing a broker's actor takes less than that
    strange = min(deadline, began + 2 * SILENCE_MS / 1000)
    # Each attempt has a connection of its own. Nothing that was said on one counts for the next:
    # another process may have taken the port meanwhile.
    while True:
        talk = _Talk(endpoint, deadline, timeout_ms)
        try:
            return talk.ask(address), talk.reached or endpoint
        except _Broken:
            # A peer that has not spoken ZMTP by then is another program that hangs up.
            if time.monotonic() > (deadline if talk.is_zmtp else strange):
                raise talk.ended() from None
        finally:
            talk.close()
        time.sleep(AGAIN_MS / 1000)


class _Talk:
    """One connection. `is_zmtp` is set once the other side has spoken as a ZeroMQ peer.

    `_got` has everything that was received, and `_at` is how far it was understood; `_sent` has
    everything that was sent. Together they identify the peer: by its first words, or because it
    only repeats what it hears.
    """

    def __init__(self, endpoint: str, deadline: float, timeout_ms: int) -> None:
        self._endpoint, self._deadline, self._timeout_ms = endpoint, deadline, timeout_ms
        self._socket: socket.socket | None = None
        self._got = b""
        self._sent = b""
        self._at = 0
        self.is_zmtp = False
        # the address that was reached, if the name has addresses of both versions
        self.reached = ""

    def ask(self, address: Address) -> Greeted:
        """What the peer says of itself. Call it once.

        Raises ConnectError, BrokerTimeout, or _Broken where a new connection may do better.
        """
        self._socket = self._connect(address)
        self._send(_GREETING)
        self._meet()
        # In one piece: the kernel would delay a second one until the first is acknowledged.
        self._send(_frame(_COMMAND, _READY) + _frame(0, encode(Greet(PROTOCOL))))
        while True:
            flags, body = self._next_frame()
            # commands are ZMTP's own, and come before the first frame of a message
            if not flags & _COMMAND:
                break
            self._check_peer(body)
        greeted = decode_greeted(body)
        if greeted is None:
            said = "its own words" if body == encode(Greet(PROTOCOL)) else repr(body[:60])
            raise ConnectError(
                "no Penstock broker of this version is there",
                f"{self._endpoint} answers {said}",
                "see that the endpoint is right, and that both sides have one version: "
                "penstock version",
            )
        return greeted

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    # --- connecting ---

    def _connect(self, address: Address) -> socket.socket:
        # Try all addresses of a name in turn: a broker may listen on only one of localhost's. If
        # all refuse, the last error is reported.
        refused: OSError | None = None
        targets = self._targets(address)
        for family, target in targets:
            peer = socket.socket(family)
            try:
                peer.settimeout(max(self._deadline - time.monotonic(), 0.001))
                peer.connect(target)
            except OSError as error:
                peer.close()
                refused = error
                continue
            if len({family for family, _ in targets}) > 1:
                self.reached = shown(Address(target[0], address.port))
            return peer
        assert refused is not None
        # the queue of connections is full: a socket file answers EAGAIN, a TCP port nothing at all
        if isinstance(refused, TimeoutError) or refused.errno == errno.EAGAIN:
            raise BrokerTimeout(
                f"nobody has taken the connection within {self._timeout_ms} ms",
                self._endpoint,
                "see that the machine is up and no firewall is between, and whether the broker has "
                "as many connections as it takes: it says so, see max_connections",
            )
        # The peer was there and has gone, as when a process ends: worth another attempt.
        if refused.errno in (errno.ECONNRESET, errno.ECONNABORTED):
            raise _Broken
        if refused.errno not in _NOT_THERE:
            raise ConnectError(
                "the connection cannot be made",
                f"{self._endpoint}: {refused.strerror}",
                "see that the endpoint is right and its machine can be reached",
            )
        raise NobodyThere(
            "nobody listens at this endpoint",
            self._endpoint,
            "start a broker: penstock up --store STORE. One that runs says where it listens: "
            "penstock status --store STORE",
        )

    def _targets(self, address: Address) -> list[tuple[int, Any]]:
        if address.path:
            return [(socket.AF_UNIX, address.path)]
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NobodyThere(
                "the host's name cannot be resolved",
                f"{self._endpoint}: {getattr(error, 'strerror', None) or error}",
                "see that the name is right; this machine is 127.0.0.1",
            ) from None
        return [(family, target) for family, _, _, _, target in found]

    # --- talking ---

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except OSError:
            raise _Broken from None
        # only what was sent as a whole: it is compared with what comes back
        self._sent += data

    def _read_until(self, size: int, until: float) -> bool:
        """Whether `size` bytes have arrived in all, by `until`."""
        assert self._socket is not None
        while len(self._got) < size:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                return False
            except OSError:
                raise _Broken from None
            if not data:
                raise _Broken
            self._got += data
        return True

    def _meet(self) -> None:
        """Read the other side's greeting. Raises ConnectError, which names what else it may be."""
        until = min(self._deadline, time.monotonic() + SILENCE_MS / 1000)
        try:
            greeted = self._read_until(len(_SIGNATURE), until)
        except _Broken:
            # A peer that speaks and hangs up is identified. After silence it may be any: try again.
            if self._got:
                raise self._stranger() from None
            raise
        if greeted and not _is_zmtp(self._got) or not greeted and self._got:
            raise self._stranger()
        # _nudge always raises: after a nudge this connection is of no use, whatever comes
        if not greeted:
            self._nudge()
        self.is_zmtp = True
        if not self._read_until(len(_GREETING), self._deadline):
            raise self._silent()
        self._at = len(_GREETING)

    def _nudge(self) -> None:
        """Send a line to a silent peer, which may make it say what it is. Always raises."""
        until = min(self._deadline, time.monotonic() + SILENCE_MS / 1000)
        try:
            self._send(_NUDGE)
            self._read_until(len(_SIGNATURE), until)
        except _Broken:
            # it hung up on the line without a word, as an actor also does that is being replaced
            if not self._got:
                raise
        if _is_zmtp(self._got):
            self.is_zmtp = True
            # A ZeroMQ peer after all, only slow. The nudge has spoiled this connection, since it
            # stands where the protocol expects a frame; the next attempt starts clean.
            raise _Broken
        raise self._stranger() if self._got else self._silent()

    def _next_frame(self) -> tuple[int, bytes]:
        self._need(2)
        flags, size = self._got[self._at], self._got[self._at + 1]
        head = 2
        if flags & _LONG:
            head = 9
            self._need(head)
            size = int.from_bytes(self._got[self._at + 1 : self._at + head])
        # before waiting for the body: `_need` would collect any length
        if size > _MAX_FRAME_BYTES:
            raise self._stranger()
        self._need(head + size)
        body = self._got[self._at + head : self._at + head + size]
        self._at += head + size
        return flags, body

    def _need(self, size: int) -> None:
        if not self._read_until(self._at + size, self._deadline):
            raise self._silent()

    def _check_peer(self, command: bytes) -> None:
        """Raise ConnectError for a socket other than a ROUTER, which would never answer."""
        # An echo server passes every check before this one, as it returns our greeting and READY.
        if self._sent.startswith(self._got[: self._at]):
            raise self._stranger()
        _, named, rest = command.partition(b"Socket-Type")
        if command.startswith(b"\x05READY") and named:
            kind = rest[4 : 4 + int.from_bytes(rest[:4])]
            if kind != b"ROUTER":
                raise ConnectError(
                    "another program's ZeroMQ socket is there, and no Penstock broker",
                    f"{self._endpoint} is a {kind.decode(errors='replace')[:20]}",
                    "see that the port is right",
                )

    # --- what it was ---

    def ended(self) -> ConnectError:
        """The error for a peer whose connections all broke until the deadline.

        May make one more connection, to recognise a TLS server.
        """
        if self.is_zmtp:
            return self._silent()
        who = "a TLS server is there" if self._speaks_tls() else "whoever listens there hangs up"
        return ConnectError(
            f"{who}, and is no Penstock broker",
            self._endpoint,
            "see that the port is right: penstock status --store STORE",
        )

    def _speaks_tls(self) -> bool:
        """Whether a TLS handshake gets an answer. OpenSSL's servers hang up on anything else
        without a word, so only a handshake tells them from others that hang up."""
        import ssl  # here, because hardly any client needs it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Nothing is sent over it, so it does not matter whose certificate it is.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            family, target = self._targets(parse_endpoint(self._endpoint))[0]
            with socket.socket(family) as peer:
                peer.settimeout(SILENCE_MS / 1000)
                peer.connect(target)
                context.wrap_socket(peer).close()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return False  # it hangs up on this, too
        except ssl.SSLError as error:
            return error.reason not in ("WRONG_VERSION_NUMBER", None)
        except (OSError, ConnectError):
            return False
        return True

    def _stranger(self) -> ConnectError:
        who = next((who for start, who in _KNOWN if self._got.startswith(start)), "")
        if self._sent.startswith(self._got):
            who = "an echo server, which says what it hears,"
        said = "" if who else f" says {self._got[:40]!r}"
        return ConnectError(
            f"{who or 'another program'} is there, and no Penstock broker",
            f"{self._endpoint}{said}",
            "see that the port is right: penstock status --store STORE",
        )

    def _silent(self) -> BrokerTimeout:
        if self.is_zmtp:
            return BrokerTimeout(
                f"a ZeroMQ peer is there and has not answered within {self._timeout_ms} ms",
                self._endpoint,
                "if it is a broker, it is held up: penstock status --store STORE",
            )
        return BrokerTimeout(
            "somebody takes connections there and says nothing",
            self._endpoint,
            "a broker that is starting or frozen does so, and so do other programs. For one that "
            "is starting there is wait_for_broker_ms, with commands --wait",
        )


def _is_zmtp(got: bytes) -> bool:
    """Whether this begins as ZMTP does. The eight bytes in between are a length in ZMTP 1.0, and
    may have any value."""
    return got[:1] == b"\xff" and got[9:10] == b"\x7f"


def _frame(flags: int, body: bytes) -> bytes:
    """A short frame: its length is one byte, so the body has 255 bytes at most."""
    return bytes((flags, len(body))) + body
