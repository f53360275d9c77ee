"""TLS on a connection of the protocol: sealed bytes on one side, plain ones on the other. No I/O.

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
        """Bytes that have come and are no whole TLS record yet."""
        return self._in.pending

    def open(self, data: bytes) -> bytes:
        """Decrypt what the client has sent. Raises ProtocolError if it is not TLS."""
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
        """Returns the bytes to send: what the handshake owes the client, and this, encrypted."""
        rest = memoryview(said)
        while rest:  # OpenSSL takes one record at a time
            rest = rest[self._session.write(rest) :]
        return self._out.read()
