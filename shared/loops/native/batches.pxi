# From the items of a batch of RocketMQ's clients to records. Part of `compiled`; the twin is in
# `pure.plain`, which gets whatever is not in order, and an item that has a checksum.

from penstock.shared.formats.record_crc import PROP_CRC_ROOM

cdef enum:
    ITEM_FLAG = 12
    ITEM_BODY_LENGTH = 16
    ITEM_BODY = 20
    ITEM_FIXED = ITEM_BODY + PROPERTIES_LENGTH

cdef bytes _ROOM = PROP_CRC_ROOM
cdef Bytes crc_room = <Bytes> PyBytes_AS_STRING(_ROOM)


cdef inline bint has_crc(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether the name of the checksum occurs anywhere in these properties."""
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
    """How many bytes the records take, each with `more` next to body and properties; -1 where the
    twin has to decide. Every length is checked here, and `put_items` then relies on that."""
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
    """The size of the checksum, and of the separator before it if the properties lack one."""
    return CRC_ROOM + (1 if properties and end[-1] != 2 else 0)


cdef void put_items(
    unsigned char *at,
    Bytes item,
    Bytes stop,
    Bytes lead,
    Py_ssize_t common_bytes,
    const Parts *parts,
    bint prop_crc,
    int32_t *sizes,
) noexcept nogil:
    """Put the records of items that `records_of` has counted, and the size of each."""
    # the topic with its length byte
    cdef Py_ssize_t size, body, properties, room
    cdef Py_ssize_t name = common_bytes - PROPERTIES_LENGTH - parts.body_at
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
            memcpy(at + room - CRC_ROOM, crc_room, CRC_ROOM)
            at += room
        sizes[0] = <int32_t> size
        sizes += 1
        item += i32(item)


def batch_records(bytes raw, bytes common, bint prop_crc):
    cdef Bytes item = <Bytes> PyBytes_AS_STRING(raw), lead = <Bytes> PyBytes_AS_STRING(common)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(raw), common_bytes = PyBytes_GET_SIZE(common)
    cdef Py_ssize_t count, total, number
    cdef Parts parts
    cdef int32_t *sizes
    if not is_whole(lead, common_bytes, &parts) or parts.size != common_bytes or parts.body_bytes:
        return pure.plain.batch_records(raw, common, prop_crc)
    total = records_of(item, length, common_bytes, prop_crc, &count)
    if total < 0:
        return pure.plain.batch_records(raw, common, prop_crc)
    made = PyBytes_FromStringAndSize(NULL, total)
    sizes = <int32_t *> PyMem_RawMalloc((count + 1) * sizeof(int32_t))
    if sizes == NULL:
        raise MemoryError
    try:
        put_items(
            <unsigned char *> PyBytes_AS_STRING(made), item, item + length, lead, common_bytes,
            &parts, prop_crc, sizes,
        )
        return made, [sizes[number] for number in range(count)]
    finally:
        PyMem_RawFree(sizes)
