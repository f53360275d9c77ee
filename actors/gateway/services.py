"""What processors of requests have at hand."""

from __future__ import annotations

from collections.abc import Callable

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.groups import Groups
from penstock.actors.gateway.pulls import Pulls
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.topics import TopicTable
from penstock.shared.config import Config
from penstock.shared.filters.message_filter import KnownFilters
from penstock.shared.memory.positions import Positions
from penstock.shared.queue.reader import QueueReader


class Services:
    """The gateway, as a processor sees it. `answer` is for what is answered later."""

    def __init__(
        self,
        config: Config,
        address: str,
        run_id: str,
        topics: TopicTable,
        sends: Sends,
        groups: Groups,
        queues: QueueReader,
        pulls: Pulls,
        positions: Positions,
        answer: Callable[[Call, Reply], None],
    ) -> None:
        """`address` is the broker's, HOST:PORT, as clients are told it."""
        self.config, self.address, self.run_id = config, address, run_id
        self.topics, self.sends, self.groups = topics, sends, groups
        self.queues, self.pulls, self.filters = queues, pulls, KnownFilters()
        self.answer, self._positions = answer, positions

    def log_at(self, offset: int, size: int) -> memoryview | bytes:
        """Bytes of the log, of which less is there where it ends; b"" where it is not."""
        dispatched = self._positions["dispatched"]
        if not self._positions["log_start"] <= offset < dispatched:
            return b""
        return self.queues.log.view(offset, min(offset + size, dispatched))
