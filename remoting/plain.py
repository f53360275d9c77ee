"""A message that is sent as nearly all are: from its frame straight to its record, and its answer.

The general way is `decode_command`, `read_fields`, `sent_message`, and back `write_fields` and
`encode_head`: a dictionary for each step. A broker does this for every single message, so the
common form has a way of its own that makes none: SEND_MESSAGE_V2 with a header of JSON, all fields
text, hosts of IPv4, and no property that means something to the broker. It is a loop with two
forms. For anything else there is None, and the general way decides, as it does on all that is
wrong. What is taken here becomes the same bytes as there: a test holds the two together.

This file does not know which topics there are.
"""

from __future__ import annotations

import struct

from penstock.remoting.codes import VERSION
from penstock.remoting.command import LENGTH
from penstock.remoting.sends import REGION
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.formats.record_layout import HOST_V4_BYTES, Shape
from penstock.shared.loops.active import plain_send
from penstock.shared.loops.forms import PlainSend

_ANSWER_HEAD = struct.Struct(">ii")


class PlainSends:
    """The plain messages for one broker."""

    def __init__(self, cluster: str, max_message_bytes: int, shape: Shape) -> None:
        self._max_body_bytes = max_message_bytes
        self._is_v4 = shape.store_host_bytes == HOST_V4_BYTES
        added = {"MSG_REGION": REGION, "TRACE_ON": "true", "CLUSTER": cluster}
        self._added = "".join(f"{key}\x01{value}\x02" for key, value in added.items()).encode()
        self._added += PROP_CRC_ROOM if shape.prop_crc else b""

    def read(self, frame: bytes, born_host: bytes) -> PlainSend | None:
        """The message of a frame, which is without its total length; None where it is not plain.

        `record` of it is what the general way makes, for a queue that its sender names.
        """
        if not self._is_v4:
            return None
        return plain_send(frame, born_host, self._added, self._max_body_bytes)


def encode_stored(
    opaque: int, unique_key: str, queue_id: int, code: int, message_id: str, queue_offset: int
) -> bytes:
    """The answer's whole frame, for a message that is stored."""
    header = (
        f'{{"code":{code},"language":"JAVA","version":{VERSION},"opaque":{opaque},"flag":1,'
        f'"extFields":{{"msgId":"{message_id}","queueId":"{queue_id}",'
        f'"queueOffset":"{queue_offset}","transactionId":"{unique_key}",'
        f'"MSG_REGION":"{REGION}","TRACE_ON":"true"}}}}'
    ).encode()
    return _ANSWER_HEAD.pack(LENGTH.size + len(header), len(header)) + header
