"""A message that is sent as nearly all are: from its frame straight to its record and its answer.

The general way is `decode_command`, `read_fields`, `sent_message`, and back `write_fields` and
`encode_head`: a dictionary for each step. A broker does this for every single message, so the
common form has a fast path that makes no dictionary, `ClientFrame`. It takes SEND_MESSAGE_V2 and
batches with a JSON header, only text fields, IPv4 hosts, and no property that means something to
the broker. It is a loop with two forms. Anything else, and all that is wrong, is left to the
general way, which decides. Both make the same bytes: a test compares them.

This file does not know which topics there are.
"""

from __future__ import annotations

from functools import cache

from penstock.remoting.codes import VERSION
from penstock.remoting.sends import REGION
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.formats.record_layout import HOST_V4_BYTES, Shape
from penstock.shared.loops.forms import PlainRules


def plain_rules(cluster: str, max_message_bytes: int, shape: Shape) -> PlainRules:
    """A broker's rules for plain messages: the properties that it adds, checksum and largest
    body."""
    added = {"MSG_REGION": REGION, "TRACE_ON": "true", "CLUSTER": cluster}
    raw = "".join(f"{key}\x01{value}\x02" for key, value in added.items()).encode()
    is_v4 = shape.store_host_bytes == HOST_V4_BYTES
    return PlainRules(
        raw + (PROP_CRC_ROOM if shape.prop_crc else b""),
        shape.prop_crc,
        max_message_bytes if is_v4 else -1,
    )


@cache
def stored_words(code: int) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    """The constant parts of the answer for a stored message: see ClientFrame.answers."""
    return (
        f'{{"code":{int(code)},"language":"JAVA","version":{VERSION},"opaque":'.encode(),
        b',"flag":1,"extFields":{"msgId":"',
        b'","queueId":"',
        b'","queueOffset":"',
        b'","transactionId":"',
        f'","MSG_REGION":"{REGION}","TRACE_ON":"true"}}}}'.encode(),
    )
