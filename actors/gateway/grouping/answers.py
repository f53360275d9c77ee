"""What members of groups are answered."""

from __future__ import annotations

from penstock.actors.gateway.calls import Reply
from penstock.remoting.codes import Response
from penstock.remoting.fields import OffsetAnswer
from penstock.shared.errors import StoreUnavailable

# Clients ask what they may leave out of their next heartbeats: nothing.
HEARD = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


def offset_reply(offset: int) -> Reply:
    """A group's offset in a queue; below 0 it has none, and the client decides where it begins."""
    if offset >= 0:
        return Reply(OffsetAnswer(offset))
    remark = "the group has no offset in this queue"
    return Reply(code=Response.QUERY_NOT_FOUND, remark=remark)


def taken(topic: str, queue_id: int) -> StoreUnavailable:
    return StoreUnavailable(
        "another member of the group has the queue still",
        f"{topic}, queue {queue_id}",
        "ask again",
    )
