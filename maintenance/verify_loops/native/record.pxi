# One record: where its parts are, whether they fit, and its checksums. Part of `compiled`.

cdef bint IS_LETTER[256]
for _unit in range(256):
    IS_LETTER[_unit] = _unit < 128 and (chr(_unit).isalnum() or chr(_unit) in "%|-_.:")

cdef enum:
    TAGS
    KEYS
    UNIQUE_KEY
    DELAY


cdef struct Value:
    Bytes at
    Py_ssize_t size


cdef struct Record:
    Py_ssize_t size
    uint32_t flags
    bint has_own
    int64_t stored_ms
    Value body
    Value topic
    Value properties
    Value wanted[4]


cdef class Span:
    # The bytes that Intel's library is given. The broker's compiled loops have a checksum of their
    # own and do not use it. One object is moved along: making one for each record takes longer.
    cdef Bytes at
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.at, self.size, 1, flags)

    cdef int64_t crc(self, Bytes at, Py_ssize_t size) except -1:
        self.at, self.size = at, size
        return <int64_t> crc32(self) & 0x7FFFFFFF


cdef bint is_here(
    Bytes at, int64_t position, Py_ssize_t left, Record *found, bint *is_cut
) noexcept nogil:
    cdef int32_t size = <int32_t> big(at, 4)
    if big(at + 4, 3) != 0xDAA320 or at[7] != V1 and at[7] != V2:
        return False
    if <int64_t> big(at + 28, 8) != position or size < LEAST:
        return False
    found.size = size
    is_cut[0] = size > left
    return size <= left


cdef bint take_apart(Bytes at, Record *found) noexcept nogil:
    """Find and check all parts but the checksums; return False for an unusual record."""
    cdef int lead = 1 if at[7] == V1 else 2
    cdef Py_ssize_t born_more, body_at, topic_at, properties_at
    found.flags = <uint32_t> big(at + 36, 4)
    born_more = 12 if found.flags & 0x10 else 0
    body_at = 88 + born_more + (12 if found.flags & 0x20 else 0)
    if found.flags & 0x80 or at[12] > 0x7F or big(at + 20, 8) >> 58:
        return False
    if body_at + lead + 2 > found.size:
        return False
    found.stored_ms = <int64_t> big(at + 56 + born_more, 8)
    found.body = Value(at + body_at, <int32_t> big(at + body_at - 4, 4))
    topic_at = body_at + found.body.size + lead
    if found.body.size < 0 or topic_at + 2 > found.size or at[topic_at - lead] > 0x7F:
        return False
    found.topic = Value(at + topic_at, <Py_ssize_t> big(at + topic_at - lead, lead))
    properties_at = topic_at + found.topic.size + 2
    if properties_at > found.size:
        return False
    found.properties = Value(at + properties_at, <int16_t> big(at + properties_at - 2, 2))
    if properties_at + found.properties.size != found.size or found.properties.size < 0:
        return False
    found.has_own = at[found.size - 1] == 2 and (
        memcmp(at + found.size - OWN_BYTES, b"__CRC32#\x01", 9) == 0
    )
    return is_topic(&found.topic)


cdef bint is_topic(Value *topic) noexcept nogil:
    cdef Py_ssize_t index
    if not 0 < topic.size <= LONGEST_TOPIC:
        return False
    for index in range(topic.size):
        if not IS_LETTER[topic.at[index]]:
            return False
    return topic.at[0] != c"." or topic.size > 2 or topic.at[topic.size - 1] != c"."


cdef void find_wanted(Record *found) noexcept nogil:
    cdef Bytes at = found.properties.at, end = at + found.properties.size, stop
    cdef Py_ssize_t size
    cdef int name
    memset(found.wanted, 0, sizeof(found.wanted))
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        for name in range(4):
            # a property without a value does not count; an earlier one of that name may
            if size <= NAME_BYTES[name] or at[0] != NAMES[name][0]:
                continue
            if memcmp(at, NAMES[name], NAME_BYTES[name]) == 0:
                found.wanted[name] = Value(at + NAME_BYTES[name], size - NAME_BYTES[name])
        at = stop + 1


cdef bint holds(Span span, Bytes at, Record *found, int checksums) except -1:
    cdef uint8_t digits[OWN_DIGITS]
    cdef int64_t crc
    cdef int place
    if checksums == OWN and not found.has_own and found.properties.size:
        if at[found.size - 1] == 0:
            return False
    if found.body.size and (checksums & BODY or checksums and not found.has_own):
        if span.crc(found.body.at, found.body.size) != <int64_t> big(at + 8, 4):
            return False
    if checksums & OWN and found.has_own:
        crc = span.crc(at, found.size - OWN_BYTES)
        for place in range(OWN_DIGITS):
            digits[place] = <uint8_t> (c"0" + crc % 10)
            crc //= 10
        return memcmp(at + found.size - 1 - OWN_DIGITS, digits, OWN_DIGITS) == 0
    return True
