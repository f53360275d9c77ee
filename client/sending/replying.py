"""The answering side of request and reply, the same for both producers: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from penstock.client.core.requests import Request, merged
from penstock.client.core.send_options import ReplyFields
from penstock.client.core.sending.encoding import Body
from penstock.shared.messaging.request_reply import reply_to

# what `send` returns
_Outcome = TypeVar("_Outcome")


class Replying(Generic[_Outcome]):
    """The part of a producer that answers requests."""

    if TYPE_CHECKING:
        # the producer's
        send: Callable[..., _Outcome]

    def reply(
        self, request: Request, body: Body, *, ack: str = "", **fields: Unpack[ReplyFields]
    ) -> _Outcome:
        """Answer a message that was sent by `request`, from any consumer. The future has the
        reply's Receipt.

        Takes `tags`, `keys` and `properties`. The reply is stored whether or not the requester is
        still there. Raises InvalidMessage if the message is not a request, and what `send` raises.
        """
        topic, own = reply_to(request.properties)
        fields["properties"] = merged(fields.get("properties"), own)
        return self.send(topic, body, ack=ack, **fields)
