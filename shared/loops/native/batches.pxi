# The items of a batch of RocketMQ's clients to records, and their ids. Part of `compiled`; the twin
# is `pure.batches`, to which goes what is not in order, and an item that has a checksum.

from penstock.shared.formats.record_crc import PROP_CRC_ROOM

cdef enum:
    ITEM_FLAG = 12
    ITEM_BODY_LENGTH = 16
    ITEM_BODY = 20
    ITEM_FIXED = ITEM_BODY + PROPERTIES_LENGTH

cdef bytes _ROOM = PROP_CRC_ROOM


cdef inline bint has_crc(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether the name of the checksum stands anywhere in these properties."""
    cdef Bytes stop = at + size
    while stop - at >= crc_lead_bytes:
        at = <Bytes> memchr(at, crc_lead[0], stop - at - crc_lead_bytes + 1)
        if at == NULL:
            return False
        if memcmp(at, crc_lead, crc_lead_bytes) == 0:
            return True
        at += 1
    return False


cdef Py_ssize_t records_of(
    Bytes raw, Py_ssize_t length, Py_ssize_t more, bint prop_crc, Py_ssize_t *count
) noexcept nogil:
    """How many bytes the records take that each have `more` beside body and properties; -1 where
    the twin is to be asked. Every length is bounded here, and only followed after it."""
    cdef Py_ssize_t at = 0, size, body, properties, room, total = 0
    count[0] = 0
    while at < length:
        if length - at < ITEM_FIXED:
            return -1
        size, body = i32(raw + at), i32(raw + at + ITEM_BODY_LENGTH)
        if size < ITEM_FIXED or size > length - at or body < 0 or body > size - ITEM_FIXED:
            return -1
        properties = size - ITEM_FIXED - body
        if i16(raw + at + ITEM_BODY + body) != properties:
            return -1
        if has_crc(raw + at + ITEM_FIXED + body, properties):
            return -1
        room = room_after(raw + at + size, properties) if prop_crc else 0
        if properties + room > MOST_PROPERTIES:
            return -1
        total += more + body + properties + room
        count[0] += 1
        at += size
    return total


cdef inline Py_ssize_t room_after(Bytes end, Py_ssize_t properties) noexcept nogil:
    """What the checksum takes, and the separator before it where properties end without one."""
    return CRC_ROOM + (1 if properties and end[-1] != 2 else 0)


def batch_records(bytes raw, bytes common, bint prop_crc):
    cdef Bytes item = <Bytes> PyBytes_AS_STRING(raw), lead = <Bytes> PyBytes_AS_STRING(common)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(raw), common_bytes = PyBytes_GET_SIZE(common)
    cdef Py_ssize_t count, total, size, body, properties, room, name
    cdef Bytes stop = item + length
    cdef unsigned char *at
    cdef Parts parts
    if not is_whole(lead, common_bytes, &parts) or parts.size != common_bytes or parts.body_bytes:
        return pure.batches.batch_records(raw, common, prop_crc)
    total = records_of(item, length, common_bytes, prop_crc, &count)
    if total < 0:
        return pure.batches.batch_records(raw, common, prop_crc)
    # the topic with its own length before it
    name = common_bytes - PROPERTIES_LENGTH - parts.body_at
    made = PyBytes_FromStringAndSize(NULL, total)
    sizes = []
    at = <unsigned char *> PyBytes_AS_STRING(made)
    while item < stop:
        body = i32(item + ITEM_BODY_LENGTH)
        properties = i32(item) - ITEM_FIXED - body
        room = room_after(item + i32(item), properties) if prop_crc else 0
        size = common_bytes + body + properties + room
        memcpy(at, lead, parts.body_at)
        put32(at, <uint32_t> size)
        put32(at + AT_BODY_CRC, crc_of(item + ITEM_BODY, body) & 0x7FFFFFFF if body else 0)
        put32(at + AT_FLAG, u32(item + ITEM_FLAG))
        put32(at + parts.body_at - (AT_BODY - AT_BODY_LENGTH), <uint32_t> body)
        at += parts.body_at
        memcpy(at, item + ITEM_BODY, body)
        at += body
        memcpy(at, lead + parts.body_at, name)
        at += name
        at[0] = (properties + room) >> 8
        at[1] = (properties + room) & 255
        at += PROPERTIES_LENGTH
        memcpy(at, item + ITEM_FIXED + body, properties)
        at += properties
        if room:
            at[0] = 2
            memcpy(at + room - CRC_ROOM, PyBytes_AS_STRING(_ROOM), CRC_ROOM)
            at += room
        sizes.append(size)
        item += i32(item)
    return made, sizes


cdef const char *HEX_DIGITS = b"0123456789ABCDEF"


def message_ids(str lead, int64_t position, list sizes):
    cdef Py_ssize_t lead_bytes, count = len(sizes), number
    cdef const char *name = PyUnicode_AsUTF8AndSize(lead, &lead_bytes)
    cdef int64_t size
    cdef int digit
    cdef unsigned char *at
    if not count or not lead.isascii():
        return pure.batches.message_ids(lead, position, sizes)
    made = PyBytes_FromStringAndSize(NULL, count * (lead_bytes + 17) - 1)
    at = <unsigned char *> PyBytes_AS_STRING(made)
    for number in range(count):
        size = sizes[number]
        if position < 0 or not 0 <= size < 1 << 31:
            return pure.batches.message_ids(lead, position, sizes)
        if number:
            at[0] = 44
            at += 1
        memcpy(at, name, lead_bytes)
        at += lead_bytes
        for digit in range(16):
            at[digit] = HEX_DIGITS[position >> 60 - 4 * digit & 15]
        at += 16
        position += size
    return made.decode("ascii")
