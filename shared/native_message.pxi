# A message, which is a view of its record. Part of `native_loops`; the twin, `pure_message`, is
# asked for what is not plainly in order, and for what is seldom wanted.
#
# A record may be anything: no field is read before is_exact() or the size says that it is there.

from penstock.shared import pure_message
from penstock.shared.compression import MAX_BODY_BYTES


@cython.final
@cython.no_gc
cdef class Payload:
    # Bytes that messages look at; they stay where they are while a message is left.
    cdef Py_buffer buffer

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_CONTIG_RO)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


# As many are kept as a pull of small messages has: each pull makes and frees them all.
@cython.freelist(8192)
@cython.no_gc
cdef class Message:
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

    @property
    def record(self):
        if self.payload is None:
            return memoryview(b"")
        start = self.at - <Bytes> self.payload.buffer.buf
        return memoryview(<object> self.payload.buffer.obj)[start : start + self.size]

    @property
    def queue_id(self):
        return i32(self.at + 12) if self.size >= SMALLEST else unusual(self, "queue_id")

    @property
    def flag(self):
        return i32(self.at + 16) if self.size >= SMALLEST else unusual(self, "flag")

    @property
    def queue_offset(self):
        return i64(self.at + 20) if self.size >= SMALLEST else unusual(self, "queue_offset")

    @property
    def physical_offset(self):
        return i64(self.at + 28) if self.size >= SMALLEST else unusual(self, "physical_offset")

    @property
    def sys_flag(self):
        return i32(self.at + 36) if self.size >= SMALLEST else unusual(self, "sys_flag")

    @property
    def born_timestamp_ms(self):
        return i64(self.at + 40) if self.size >= SMALLEST else unusual(self, "born_timestamp_ms")

    @property
    def store_timestamp_ms(self):
        if self.size < SMALLEST:
            return unusual(self, "store_timestamp_ms")
        return i64(self.at + 56 + (V6_EXTRA if self.at[39] & BORN_V6 else 0))

    @property
    def body(self):
        cdef Parts parts
        if self.taken_body is None:
            if (
                is_exact(self, &parts)
                and not self.at[39] & COMPRESSED
                and u32(self.at + 8) == body_crc(self.at, &parts)
            ):
                self.taken_body = piece_of(self.at + parts.body_at, parts.body_bytes)
            else:
                self.taken_body = unusual(self, "body")
        return self.taken_body

    @property
    def stored_body(self):
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
        return unusual(self, "born_host")

    @property
    def store_host(self):
        return unusual(self, "store_host")

    @property
    def reconsume_times(self):
        return unusual(self, "reconsume_times")

    @property
    def message_id(self):
        return unusual(self, "message_id")

    @property
    def compression(self):
        return unusual(self, "compression")

    @property
    def topic(self):
        return self._raw_topic.decode("utf-8", "replace")

    @property
    def properties(self):
        if self.taken_properties is None:
            self.taken_properties = unusual(self, "properties")
        return self.taken_properties

    @property
    def tags(self):
        return pure_message.text_of(self._raw_properties, pure_message.TAGS)

    @property
    def keys(self):
        return pure_message.text_of(self._raw_properties, pure_message.KEYS)

    @property
    def unique_key(self):
        return pure_message.text_of(self._raw_properties, pure_message.UNIQ_KEY)

    @property
    def shard(self):
        return pure_message.text_of(self._raw_properties, pure_message.SHARDING_KEY)


cdef inline bint is_exact(Message message, Parts *parts) noexcept:
    return is_whole(message.at, message.size, parts) and parts.size == message.size


cdef inline bytes piece_of(Bytes at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> at, size)


cdef object twin_of(Message message):
    return pure_message.Message(message.record, message.most)


cdef object unusual(Message message, str field):
    """What the twin makes of a field."""
    return getattr(twin_of(message), field)
