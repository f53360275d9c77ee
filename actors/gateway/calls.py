"""A request on its way through the gateway. What is answered to it is a Reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from penstock.actors.gateway.connecting.connection import Connection
from penstock.remoting.command import Command
from penstock.remoting.replies import Reply, refusal, response

__all__ = ["Call", "Reply", "refusal", "response"]


class Call(NamedTuple):
    """A request, and who has sent it."""

    connection: Connection
    command: Command
    now_ms: int  # monotonic
    # gets the reply, if it is not for the connection
    then: Callable[[Reply], None] | None = None

    def without_content(self) -> Call:
        """The same call, reduced to what its answer needs: without parts that may have any size."""
        return self._replace(command=replace(self.command, fields={}, body=b"", remark=""))
