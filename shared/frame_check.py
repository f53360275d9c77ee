"""Everything that can be wrong with a produce frame, before anything of it is stored.

Knows the configuration and the topics; knows no store and no sessions.
"""

from __future__ import annotations

from penstock.shared.config import Config
from penstock.shared.errors import InvalidMessage, QueueNotFound, TopicNotFound
from penstock.shared.frame_rules import check_batch
from penstock.shared.hot_loops import check_frame, check_properties
from penstock.shared.layout import BLANK_HEADER_BYTES
from penstock.shared.messages import Append
from penstock.shared.record import Shape, body_span
from penstock.shared.topic_admin import TopicAdmin

_ACKS = ("", "durable", "written")


class FrameCheck:
    """Checks frames for one broker, whose records have `shape`."""

    def __init__(self, config: Config, topics: TopicAdmin, shape: Shape) -> None:
        self._config = config
        self._topics = topics
        self._shape = shape

    def starts(self, request: Append, payload: bytes) -> list[int]:
        """Where each record begins, and the frame's length last.

        Raises InvalidMessage, TopicNotFound or QueueNotFound.
        """
        limit = self._config.max_frame_bytes
        if len(payload) > limit:
            raise InvalidMessage(
                f"a frame has at most {limit} bytes", len(payload), "send fewer messages at once"
            )
        if request.ack not in _ACKS:
            raise InvalidMessage('ack is "durable", "written" or ""', repr(request.ack))
        queues = self._topics.queues(request.topic)
        if not queues:
            raise TopicNotFound("the topic exists", request.topic, self._topics.hint())
        if not 0 <= request.queue_id < queues:
            raise QueueNotFound(
                f"topic {request.topic} has queues 0 to {queues - 1}",
                request.queue_id,
                "choose one of those, or create the topic with more queues",
            )
        starts = check_frame(
            payload,
            request.topic.encode(),
            request.queue_id,
            self._config.max_record_bytes,
            self._config.max_message_size_bytes,
            self._shape,
        )
        if len(starts) - 1 != request.count or request.count == 0:
            raise InvalidMessage(
                "a frame holds as many records as its header says, and at least one",
                f"{len(starts) - 1} records, {request.count} said",
            )
        check_properties(payload, starts, self._shape.prop_crc)
        if request.batch:
            self._check_batch(request.topic, payload, starts)
        return starts

    def _check_batch(self, topic: str, payload: bytes, starts: list[int]) -> None:
        body_bytes = sum(body_span(payload, at)[1] for at in starts[:-1])
        check_batch(topic, body_bytes, self._config.max_message_size_bytes)
        limit = self._config.mapped_file_size_commit_log_bytes - BLANK_HEADER_BYTES
        if starts[-1] > limit:
            rule = f"the records of a batch fit one segment: {limit} bytes"
            raise InvalidMessage(rule, starts[-1], "send smaller batches")
