"""What processors of requests have at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.group_counts import GroupCounts
from penstock.actors.gateway.grouping.early_pulls import EarlyPulls
from penstock.actors.gateway.grouping.groups import Groups
from penstock.actors.gateway.grouping.producers import Producers
from penstock.actors.gateway.grouping.settings import GroupSettings
from penstock.actors.gateway.long_requests import LongRequests
from penstock.actors.gateway.naming.own import OwnNames
from penstock.actors.gateway.pulls import Pulls
from penstock.actors.gateway.queries import Queries
from penstock.actors.gateway.rates import Rates
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.topics import TopicTable
from penstock.shared.config import Config
from penstock.shared.filters.message_filter import KnownFilters
from penstock.shared.memory.positions import Positions
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.reader import QueueReader


@dataclass(frozen=True, kw_only=True)
class Services:
    """The gateway, as a processor sees it. `answer` is for replies that come later; `address` is
    the broker's, HOST:PORT, as clients are told it."""

    config: Config
    address: str
    run_id: str
    topics: TopicTable
    sends: Sends
    groups: Groups
    group_settings: GroupSettings
    producers: Producers
    queues: QueueReader
    fresh: FreshRecords
    pulls: Pulls
    early: EarlyPulls
    requests: PeerRequests
    rates: Rates
    group_counts: GroupCounts
    queries: Queries
    long_requests: LongRequests
    names: OwnNames
    positions: Positions
    answer: Callable[[Call, Reply], None]
    now_ms: Callable[[], int]  # wall time
    started_ms: int  # likewise
    clean: Callable[[], None]  # makes the cleaner look at once
    filters: KnownFilters = field(default_factory=KnownFilters)
    # group -> bytes, as operators have set it; nothing obeys it
    cold_thresholds: dict[str, int] = field(default_factory=dict)

    def log_at(self, offset: int, size: int) -> memoryview | bytes:
        """Bytes of the log: fewer than `size` at its end, and b"" outside it.

        It ends where the answers to producers end, whether its messages are in queues by then or
        not.
        """
        end = self.positions["flushed" if self.config.sync_flush else "wrote"]
        if not self.positions["log_start"] <= offset < end:
            return b""
        log, stop = self.queues.log, min(offset + size, end)
        if stop <= self.positions["committed"]:
            return log.view(offset, stop)
        # clients may have messages that are in the pool only
        segment_end = offset - offset % log.segment_bytes + log.segment_bytes
        return log.recent(offset, min(stop, segment_end))

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        """A queue's first and next offset, including messages that pulls have got and the queue has
        not. A queue that does not exist is empty, as in RocketMQ: its clients ask about queues that
        may be made later, such as those of dead letters."""
        slot = self.queues.queues(topic).get(queue_id)
        low, high = self.queues.range(slot) if slot is not None else (0, 0)
        return low, max(high, self.fresh.end(topic, queue_id))
