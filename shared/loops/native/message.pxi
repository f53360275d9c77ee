# A message, which is a view of its record. Part of `compiled`; the twin, `pure.message`, handles
# whatever is not plainly in order, and what is seldom needed.
#
# A record may be anything: no field is read before is_exact() or the size shows that it is there.

from typing import Any

from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY


# Keeps as many as a pull of small messages has: each pull makes and frees them all.
@cython.freelist(8192)
@cython.no_gc
cdef class Message:
    """A message of a topic. Attributes are read-only; two messages with equal bytes are equal.

    It keeps the bytes of its record, or of the answer that contains it. A field is decoded each
    time it is read, body and properties only once.
    """
    cdef Payload payload
    cdef Bytes at
    cdef Py_ssize_t size
    cdef int64_t most
    cdef object taken_body
    cdef object taken_properties

    def __init__(self, record, max_body_bytes=MAX_BODY_BYTES):
        self.payload = Payload(record)
        self.at, self.size = <Bytes> self.payload.buffer.buf, self.payload.buffer.len
        self.most = min(max_body_bytes, 1 << 62)

    def __eq__(self, other):
        cdef Message another
        if not isinstance(other, Message):
            return NotImplemented
        another = other
        return self.size == another.size and memcmp(self.at, another.at, self.size) == 0

    def __hash__(self):
        return hash((self.physical_offset, self.queue_offset))

    def __repr__(self):
        return repr(twin_of(self))

    def __reduce__(self):
        return pure.message.remade, (bytes(self.record), self.most)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return Message(bytes(self.record), self.most)

    @property
    def record(self):
        """The whole record as the log has it."""
        if self.payload is None:
            return memoryview(b"")
        start = self.at - <Bytes> self.payload.buffer.buf
        return memoryview(<object> self.payload.buffer.obj)[start : start + self.size]

    @property
    def queue_id(self):
        """The queue of its topic that it is in, from 0."""
        return i32(self.at + AT_QUEUE_ID) if has_head(self) else unusual(self, "queue_id")

    @property
    def flag(self):
        """The sender's own 32 bits; the broker does not look at them."""
        return i32(self.at + AT_FLAG) if has_head(self) else unusual(self, "flag")

    @property
    def queue_offset(self):
        """The message's number in its queue, from 0."""
        return i64(self.at + AT_QUEUE_OFFSET) if has_head(self) else unusual(self, "queue_offset")

    @property
    def physical_offset(self):
        """Where the record begins in the commit log, in bytes."""
        if not has_head(self):
            return unusual(self, "physical_offset")
        return i64(self.at + AT_PHYSICAL_OFFSET)

    @property
    def sys_flag(self):
        """RocketMQ's bits: how the body is compressed, what the hosts are, transactions."""
        return i32(self.at + AT_SYS_FLAG) if has_head(self) else unusual(self, "sys_flag")

    @property
    def born_timestamp_ms(self):
        """When the producer made it, ms since 1970, by the producer's clock."""
        if not has_head(self):
            return unusual(self, "born_timestamp_ms")
        return i64(self.at + AT_BORN_TIMESTAMP)

    @property
    def store_timestamp_ms(self):
        """When the broker stored it, ms since 1970, by the broker's clock."""
        return stored_ms_of(self.at) if has_head(self) else unusual(self, "store_timestamp_ms")

    @property
    def body(self):
        """What the producer sent. Raises UnreadableBody if that cannot be told any more."""
        cdef Parts parts
        if self.taken_body is None:
            if is_exact(self, &parts) and has_plain_body(self.at, &parts):
                self.taken_body = piece_of(self.at + parts.body_at, parts.body_bytes)
            else:
                self.taken_body = unusual(self, "body")
        return self.taken_body

    def decode(self, kind=Any):
        """The object that was sent, of the type `kind`; see the twin."""
        return pure.message.decoded(self, kind)

    def _repr_html_(self):
        return pure.message.page_of(self)

    @property
    def stored_body(self):
        """The body as it is stored, compressed or not."""
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "stored_body")
        return piece_of(self.at + parts.body_at, parts.body_bytes)

    @property
    def _raw_topic(self):
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "_raw_topic")
        return piece_of(self.at + parts.topic_at, parts.topic_bytes)

    @property
    def _raw_properties(self):
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "_raw_properties")
        return piece_of(self.at + parts.properties_at, parts.size - parts.properties_at)

    @property
    def born_host(self):
        """The producer's address and port, like `10.1.2.3:54321`."""
        return unusual(self, "born_host")

    @property
    def store_host(self):
        """The broker's address and port."""
        return unusual(self, "store_host")

    @property
    def reconsume_times(self):
        """How often a group has sent it back for another try."""
        return unusual(self, "reconsume_times")

    @property
    def message_id(self):
        """The broker's id, which says where the message is."""
        return unusual(self, "message_id")

    @property
    def compression(self):
        """zlib, lz4, zstd, or None. Raises UnreadableBody for any other."""
        return unusual(self, "compression")

    @property
    def topic(self):
        """The topic it was sent to."""
        return self._raw_topic.decode("utf-8", "replace")

    @property
    def properties(self):
        """All properties, including those that hold tags, keys and the like."""
        if self.taken_properties is None:
            self.taken_properties = unusual(self, "properties")
        return self.taken_properties

    @property
    def tags(self):
        """The tag that consumers filter by; None without one."""
        return pure.message.text_of(self._raw_properties, TAGS)

    @property
    def keys(self):
        """The keys as one string; several are separated by a space. None without any."""
        return pure.message.text_of(self._raw_properties, KEYS)

    @property
    def unique_key(self):
        """The producer's id of the message."""
        return pure.message.text_of(self._raw_properties, UNIQ_KEY)

    @property
    def shard(self):
        """The sharding key: messages that share it are in one queue, in order."""
        return pure.message.text_of(self._raw_properties, SHARDING_KEY)
