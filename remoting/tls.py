"""TLS on a connection of the protocol: what comes and goes as bytes, and what they say. No I/O.

    open    what has come -> what the client has said; the handshake is a part of it
    seal    what is to be said -> what is to be sent

A client that speaks TLS says so by its first byte: a frame cannot begin with it, for its length
would be 22 times the largest there is.
"""

from __future__ import annotations

import ssl

from penstock.shared.errors import ProtocolError

FIRST_BYTE = 0x16
_READ_BYTES = 256 << 10


class TlsSession:
    """The server's side of one connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_begun = False
        self.has_ended = False

    @property
    def held_bytes(self) -> int:
        """Of what has come and is not whole."""
        return self._in.pending

    def open(self, data: bytes) -> bytes:
        """What the client has said with these bytes. Raises ProtocolError where it is no TLS."""
        self._in.write(data)
        said = []
        try:
            if not self.is_begun:
                self._session.do_handshake()
                self.is_begun = True
            while part := self._session.read(_READ_BYTES):
                said.append(part)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass  # that was all
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            raise ProtocolError("its TLS is bent", error.reason or str(error)) from None
        return b"".join(said)

    def seal(self, said: bytes = b"") -> bytes:
        """What is to be sent so that the client has this, and what the handshake owes it."""
        rest = memoryview(said)
        while rest:  # OpenSSL takes no more than a record at once
            rest = rest[self._session.write(rest) :]
        return self._out.read()
