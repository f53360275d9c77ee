"""The producer by which a group's member answers requests: `message.reply(...)`.

It connects with the first reply: most members never answer anybody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.client.core.requests import Request
from penstock.client.core.send_options import ReplyFields
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import SendFuture
from penstock.client.sending.producer import Producer

# makes the arguments of a producer for this member's broker; may block
Arguments = Callable[[], dict[str, Any]]


class Replies:
    """One member's replies, from handlers in any threads."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._making = threading.Lock()
        self._producer: Producer | None = None

    def answer(self, request: Request, body: Body, fields: ReplyFields) -> SendFuture:
        """Does what `GroupMessage.reply` promises."""
        with self._making:
            if self._producer is None:
                self._producer = Producer(**self._arguments())
        return self._producer.reply(request, body, **fields)

    def close(self) -> None:
        """Wait until every reply has its outcome. Raises the first error that nobody has seen."""
        if self._producer is not None:
            self._producer.close()
