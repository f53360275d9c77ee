# Make records of what a producer sends. Part of `compiled`; the twin is `pure.encode`, which
# is asked about what does not fit here.

from penstock.shared.loops.pure import encode as pure_encode
from penstock.shared.formats.record_crc import PROP_CRC_ROOM

cdef enum:
    MOST_PROPERTIES = 32767


def properties_of(tags, keys, shard, bytes end):
    cdef Text texts[3]
    cdef Py_ssize_t end_bytes = PyBytes_GET_SIZE(end), size = end_bytes
    cdef unsigned char *at
    if (
        not take_text(&texts[0], tags, 6)
        or not take_text(&texts[1], shard, 15)
        or not take_text(&texts[2], keys, 6)
    ):
        return pure_encode.properties_of(tags, keys, shard, end)
    size += texts[0].room + texts[1].room + texts[2].room
    made = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char *> PyBytes_AS_STRING(made)
    at = put_text(at, b"TAGS\x01", 5, &texts[0])
    at = put_text(at, b"__SHARDINGKEY\x01", 14, &texts[1])
    at = put_text(at, b"KEYS\x01", 5, &texts[2])
    memcpy(at, PyBytes_AS_STRING(end), end_bytes)
    return made


cdef class RecordMaker:
    cdef bytes born_host, end
    cdef object twin
    cdef int store_bytes, host_bits
    cdef int64_t month_start_ms
    # UNIQ_KEY as a property: name and 0x01, at most 52 characters, 12 digits of the number, 0x02
    cdef unsigned char key[74]
    cdef Py_ssize_t key_lead, key_bytes

    def __init__(self, bytes born_host, origin, shape):
        self.twin = pure_encode.RecordMaker(born_host, origin, shape)
        self.born_host = born_host
        self.month_start_ms = origin.month_start_ms
        raw = b"UNIQ_KEY\x01" + origin.prefix.encode("ascii")
        # `key` has room for no more, and it is filled by pointer
        if len(raw) > 61:
            raise ValueError("the beginning of a UNIQ_KEY has at most 52 characters")
        self.key_lead = len(raw)
        self.key_bytes = self.key_lead + 13
        memcpy(self.key, PyBytes_AS_STRING(raw), self.key_lead)
        self.key[self.key_bytes - 1] = 2
        self.take_shape(shape)

    def take_shape(self, shape):
        self.twin.take_shape(shape)
        self.store_bytes = shape.store_host_bytes
        self.host_bits = BORN_V6 if len(self.born_host) == HOST_V6 else 0
        self.host_bits |= STORE_V6 if self.store_bytes == HOST_V6 else 0
        self.end = PROP_CRC_ROOM if shape.prop_crc else b""

    def pack(self, into, runs):
        cdef Py_buffer buffer
        cdef Py_ssize_t at = 0, size, place
        cdef array.array keys, starts = array.clone(NUMBERS, 0, False)
        cdef bytes name
        cdef list drafts
        cdef int32_t queue_id
        PyObject_GetBuffer(into, &buffer, PyBUF_CONTIG)
        try:
            for name, queue_id, drafts, keys in runs:
                check_numbers(keys, len(drafts))
                for place in range(len(drafts)):
                    put_number(starts, at)
                    size = self.put(
                        <unsigned char *> buffer.buf + at,
                        buffer.len - at,
                        name,
                        queue_id,
                        drafts[place],
                        keys.data.as_longlongs[place],
                    )
                    if size < 0:
                        break
                    at += size
                else:
                    continue
                break
            else:
                put_number(starts, at)
                return starts
        finally:
            PyBuffer_Release(&buffer)
        return self.twin.pack(into, runs)

    cdef Py_ssize_t put(
        self,
        unsigned char *at,
        Py_ssize_t left,
        bytes name,
        int32_t queue_id,
        draft,
        int64_t key,
    ) except -2:
        """Put a record there; its size, or -1 where it does not fit, or its properties do not."""
        cdef bytes body, properties
        cdef int64_t born_ms
        cdef int32_t flag = 0, sys_flag = 0
        cdef Py_ssize_t length, name_bytes = PyBytes_GET_SIZE(name)
        cdef Py_ssize_t born = PyBytes_GET_SIZE(self.born_host), end = PyBytes_GET_SIZE(self.end)
        cdef Py_ssize_t own_bytes, raw_bytes, size, blank
        if type(draft) is bytes:
            body, properties = draft, b""
        else:
            body, properties, flag, sys_flag = <tuple?> draft
        length, own_bytes = PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(properties)
        raw_bytes = own_bytes + self.key_bytes + end
        size = AT_BODY - 2 * HOST_V4 + born + self.store_bytes + length + name_bytes
        size += PROPERTIES_LENGTH + raw_bytes
        if size > left or raw_bytes > MOST_PROPERTIES:
            return -1
        born_ms = self.month_start_ms + (key >> 16)
        put32(at, <uint32_t> size)
        put32(at + AT_MAGIC, MAGIC_V1 if name_bytes <= LENGTH_V1 + 127 else MAGIC_V2)
        put32(
            at + AT_BODY_CRC,
            crc_of(<Bytes> PyBytes_AS_STRING(body), length) & 0x7FFFFFFF if length else 0,
        )
        put32(at + AT_QUEUE_ID, queue_id)
        put32(at + AT_FLAG, flag)
        memset(at + AT_QUEUE_OFFSET, 0, AT_SYS_FLAG - AT_QUEUE_OFFSET)
        put32(at + AT_SYS_FLAG, sys_flag | self.host_bits)
        put64(at + AT_BORN_TIMESTAMP, born_ms)
        at += AT_BORN_HOST
        memcpy(at, PyBytes_AS_STRING(self.born_host), born)
        at += born
        # the broker stamps time and host; a new message was consumed 0 times, and prepares nothing
        blank = AT_BODY_LENGTH - AT_STORE_TIMESTAMP - HOST_V4 + self.store_bytes
        memset(at, 0, blank)
        at += blank
        put32(at, <uint32_t> length)
        at += AT_BODY - AT_BODY_LENGTH
        memcpy(at, PyBytes_AS_STRING(body), length)
        at += length
        memcpy(at, PyBytes_AS_STRING(name), name_bytes)
        at += name_bytes
        at[0] = raw_bytes >> 8
        at[1] = raw_bytes & 255
        at += PROPERTIES_LENGTH
        memcpy(at, PyBytes_AS_STRING(properties), own_bytes)
        at += own_bytes
        put_hex(self.key + self.key_lead, <uint32_t> (key >> 16), 8)
        put_hex(self.key + self.key_lead + 8, <uint32_t> key & 0xFFFF, 4)
        memcpy(at, self.key, self.key_bytes)
        memcpy(at + self.key_bytes, PyBytes_AS_STRING(self.end), end)
        return size


cdef struct Text:
    # a value, and what the property takes with name and separators; nothing where it is empty
    const char *at
    Py_ssize_t size
    Py_ssize_t room


cdef bint take_text(Text *into, object text, Py_ssize_t around):
    """Whether the text may be a property's value as it is."""
    into.room = 0
    if not text:
        return True
    if type(text) is not str:
        return False
    try:
        into.at = PyUnicode_AsUTF8AndSize(text, &into.size)
    except UnicodeEncodeError:
        return False
    into.room = into.size + around
    return memchr(into.at, 1, into.size) == NULL and memchr(into.at, 2, into.size) == NULL


cdef inline unsigned char *put_text(
    unsigned char *at, const char *lead, Py_ssize_t lead_bytes, Text *text
) noexcept:
    if not text.room:
        return at
    memcpy(at, lead, lead_bytes)
    memcpy(at + lead_bytes, text.at, text.size)
    at[text.room - 1] = 2
    return at + text.room


cdef inline void put_hex(unsigned char *at, uint32_t value, int digits) noexcept:
    cdef const char *signs = b"0123456789ABCDEF"
    for place in range(digits - 1, -1, -1):
        at[place] = signs[value & 15]
        value >>= 4
