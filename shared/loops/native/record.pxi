# The words and the outline of a record, and its checksums. Part of `compiled`; in Python these
# are `record_check`, `record_outline` and `record_crc`.
#
# All words are big-endian. is_whole() checks every length of a record once; code that has its Parts
# may use these without another check, and no length is used without them.

from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.names import MAX_RETRY_TOPIC_BYTES, STORED_TOPIC_CHARACTERS
from penstock.shared.formats.record_crc import PROP_CRC_LEAD

cdef enum:
    CRC_ROOM = 20
    CRC_DIGITS = 10


cdef inline uint32_t u32(Bytes at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline int32_t i32(Bytes at) noexcept nogil:
    return <int32_t> u32(at)


cdef inline int64_t i64(Bytes at) noexcept nogil:
    return <int64_t> (<uint64_t> u32(at) << 32 | u32(at + 4))


cdef inline int i16(Bytes at) noexcept nogil:
    return <signed char> at[0] * 256 + at[1]


cdef inline void put32(unsigned char *at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 255
    at[2] = value >> 8 & 255
    at[3] = value & 255


cdef inline void put64(unsigned char *at, int64_t value) noexcept nogil:
    put32(at, <uint32_t> (<uint64_t> value >> 32))
    put32(at + 4, <uint32_t> value)


cdef struct Parts:
    # Where the parts of a record are, relative to its beginning.
    Py_ssize_t size
    Py_ssize_t body_at
    Py_ssize_t body_bytes
    Py_ssize_t topic_at
    Py_ssize_t topic_bytes
    Py_ssize_t properties_at


cdef inline bint is_whole(Bytes at, Py_ssize_t left, Parts *parts) noexcept nogil:
    """Whether a record begins here whose lengths add up to its size, within `left` bytes."""
    cdef Py_ssize_t topic_end
    cdef int lead = LENGTH_V1
    # before the size is read, and before any field of the head: SMALLEST includes them all
    if left < SMALLEST:
        return False
    parts.size = i32(at)
    if parts.size < SMALLEST or parts.size > left:
        return False
    if i32(at + AT_MAGIC) != MAGIC_V1:
        if i32(at + AT_MAGIC) != MAGIC_V2:
            return False
        lead = LENGTH_V2
    parts.body_at = AT_BODY
    if at[AT_SYS_FLAG_LOW] & BORN_V6:
        parts.body_at += V6_EXTRA
    if at[AT_SYS_FLAG_LOW] & STORE_V6:
        parts.body_at += V6_EXTRA
    # SMALLEST assumes IPv4 hosts: if a record claims others, its body may begin past its end
    if parts.body_at > parts.size:
        return False
    parts.body_bytes = i32(at + parts.body_at - (AT_BODY - AT_BODY_LENGTH))
    parts.topic_at = parts.body_at + parts.body_bytes + lead
    # Lengths are signed, as in RocketMQ, and their sums have 64 bits: none overflows.
    if parts.body_bytes < 0 or parts.topic_at + PROPERTIES_LENGTH > parts.size:
        return False
    if lead == LENGTH_V1:
        parts.topic_bytes = <signed char> at[parts.topic_at - LENGTH_V1]
    else:
        parts.topic_bytes = i16(at + parts.topic_at - LENGTH_V2)
    topic_end = parts.topic_at + parts.topic_bytes
    if parts.topic_bytes < 0 or topic_end + PROPERTIES_LENGTH > parts.size:
        return False
    parts.properties_at = topic_end + PROPERTIES_LENGTH
    return i16(at + topic_end) == parts.size - parts.properties_at


cdef inline int64_t stored_ms_of(Bytes at) noexcept nogil:
    """The store time of a record of at least SMALLEST bytes, which include it even after IPv6."""
    return i64(at + AT_STORE_TIMESTAMP + (V6_EXTRA if at[AT_SYS_FLAG_LOW] & BORN_V6 else 0))


cdef unsigned char of_topics[256]
memset(of_topics, 0, 256)
for _character in STORED_TOPIC_CHARACTERS:
    of_topics[<int> ord(_character)] = 1
cdef Py_ssize_t MAX_TOPIC = MAX_RETRY_TOPIC_BYTES
assert MAX_QUEUE_OFFSET == 4 << 56, "the first byte says whether a queue offset is below it"


cdef inline bint names_queue(Bytes at, Parts *parts) noexcept nogil:
    """Whether a whole record can be of the queue that it names: the rule of record_check.py."""
    cdef Bytes topic = at + parts.topic_at
    cdef Py_ssize_t last = parts.topic_bytes - 1, place
    # the first bytes show that the queue's id is not negative and its offset is below the limit
    if at[AT_QUEUE_ID] > 127 or at[AT_QUEUE_OFFSET] > 3 or last < 0 or last >= MAX_TOPIC:
        return False
    if last < 2 and topic[0] == 0x2E and topic[last] == 0x2E:
        return False
    for place in range(parts.topic_bytes):
        if not of_topics[topic[place]]:
            return False
    return True


cdef inline uint32_t body_crc(Bytes at, Parts *parts) noexcept nogil:
    if not parts.body_bytes:
        return 0
    return crc_of(at + parts.body_at, parts.body_bytes) & 0x7FFFFFFF


cdef bytes _LEAD = PROP_CRC_LEAD
cdef Bytes crc_lead = <Bytes> PyBytes_AS_STRING(_LEAD)
cdef Py_ssize_t crc_lead_bytes = PyBytes_GET_SIZE(_LEAD)


cdef inline void digits_of(uint32_t crc, unsigned char *digits) noexcept nogil:
    """The ten digits of a record's checksum: least significant first."""
    cdef int place
    crc &= 0x7FFFFFFF
    for place in range(CRC_DIGITS):
        digits[place] = 48 + crc % 10
        crc //= 10


cdef inline void put_digits(unsigned char *record, Bytes head, Py_ssize_t size) noexcept nogil:
    """Put the checksum at a record's end; its first CLAIM bytes are still only at `head`."""
    cdef uint32_t crc = crc_on(crc_of(head, CLAIM), record + CLAIM, size - CRC_ROOM - CLAIM)
    digits_of(crc, record + size - 1 - CRC_DIGITS)


cdef inline bint ends_in_crc(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether the checksum, or the room for it, is a record's last property."""
    cdef Bytes room = at + size - CRC_ROOM
    return memcmp(room, crc_lead, crc_lead_bytes) == 0 and room[CRC_ROOM - 1] == 2


@cython.final
@cython.no_gc
cdef class Payload:
    # The bytes that messages point into. Each message keeps this, and this keeps the buffer, so the
    # bytes stay in place until the last message is gone.
    cdef Py_buffer buffer

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_CONTIG_RO)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)
