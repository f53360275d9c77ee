"""What processors of requests have at hand."""

from __future__ import annotations

from collections.abc import Callable

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.topics import TopicTable
from penstock.shared.config import Config


class Services:
    """The gateway, as a processor sees it. `answer` is for what is answered later."""

    def __init__(
        self,
        config: Config,
        address: str,
        topics: TopicTable,
        sends: Sends,
        answer: Callable[[Call, Reply], None],
    ) -> None:
        """`address` is the broker's, HOST:PORT, as clients are told it."""
        self.config, self.address = config, address
        self.topics, self.sends = topics, sends
        self.answer = answer
