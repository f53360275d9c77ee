# The copies that are delivered of records that have waited. Part of `compiled`; see
# `timers.pxi`, which reads the records, and the twin, `pure.timers`.


cdef bint is_recalled(Delayed *it, recalled) except *:
    key = b"%b+%b" % (
        PyBytes_FromStringAndSize(<const char *> it.topic.at, it.topic.size),
        PyBytes_FromStringAndSize(<const char *> it.unique_key.at, it.unique_key.size),
    )
    # in keys, bytes that are not UTF-8 are replaced
    return key.decode("utf-8", "replace").encode() in recalled


cdef inline Py_ssize_t kept_bytes(Bytes record, Delayed *it) noexcept nogil:
    """The size of the properties that a copy keeps, all but the checksum; 0: the twin decides."""
    cdef Bytes properties = record + it.parts.properties_at
    cdef Py_ssize_t size = it.parts.size - it.parts.properties_at
    if it.crcs:
        size -= CRC_ROOM
        if it.crcs > 1 or size < 0 or it.crc.at != properties + size:
            return 0
        # it is a single property only if its last byte is its only separator
        if memchr(it.crc.at, 2, CRC_ROOM) != it.crc.at + CRC_ROOM - 1:
            return 0
    return size if size and properties[size - 1] == 2 else 0


cdef object copy_of(Bytes record, Delayed *it, int64_t due_ms, bint timed, int host, bint crc):
    """The copy of a record; NotImplemented if the record is not plain."""
    cdef int64_t queue = number_of(&it.queue, QUEUE_DIGITS)
    cdef Py_ssize_t kept = kept_bytes(record, it), properties = kept, added_bytes = 0, size, at
    cdef Py_ssize_t born = HOST_V6 if record[AT_SYS_FLAG_LOW] & BORN_V6 else HOST_V4
    cdef bytes added = b"", made
    cdef unsigned char *into
    if queue < 0 or not kept or not it.unique_key.size:
        return NotImplemented
    if not it.topic.size or it.topic.size > MOST_TOPIC:
        return NotImplemented
    if kept + ADDED_ROOM + CRC_ROOM > MOST_PROPERTIES:
        return NotImplemented
    if timed:
        added = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (it.stored_ms, due_ms)
        added_bytes = PyBytes_GET_SIZE(added)
    properties += added_bytes + (CRC_ROOM if crc else 0)
    size = AT_BORN_HOST + born + 8 + host + TAIL_HEAD_BYTES + it.parts.body_bytes
    size += LENGTH_V1 + it.topic.size + PROPERTIES_LENGTH + properties
    made = PyBytes_FromStringAndSize(NULL, size)
    into = <unsigned char *> PyBytes_AS_STRING(made)
    memcpy(into, record, AT_BORN_HOST + born)
    put32(into, <uint32_t> size)
    put32(into + AT_MAGIC, <uint32_t> MAGIC_V1)
    put32(into + AT_QUEUE_ID, <uint32_t> queue)
    memset(into + AT_QUEUE_OFFSET, 0, AT_SYS_FLAG - AT_QUEUE_OFFSET)
    into[AT_SYS_FLAG_LOW] &= 255 - (STORE_V6 | TRANSACTION)
    if host == HOST_V6:
        into[AT_SYS_FLAG_LOW] |= STORE_V6
    at = AT_BORN_HOST + born
    memset(into + at, 0, 8 + host)
    at += 8 + host
    # reconsume times, the offset of a transaction, which it does not have, and the body's length
    memcpy(into + at, record + it.parts.body_at - TAIL_HEAD_BYTES, TAIL_HEAD_BYTES)
    memset(into + at + AT_PREPARED_OFFSET - AT_RECONSUME_TIMES, 0, 8)
    at += TAIL_HEAD_BYTES
    memcpy(into + at, record + it.parts.body_at, it.parts.body_bytes)
    at += it.parts.body_bytes
    into[at] = <unsigned char> it.topic.size
    memcpy(into + at + LENGTH_V1, it.topic.at, it.topic.size)
    at += LENGTH_V1 + it.topic.size
    into[at], into[at + 1] = properties >> 8, properties & 255
    at += PROPERTIES_LENGTH
    memcpy(into + at, record + it.parts.properties_at, kept)
    memcpy(into + at + kept, PyBytes_AS_STRING(added), added_bytes)
    if crc:
        at += kept + added_bytes
        memcpy(into + at, crc_lead, crc_lead_bytes)
        memset(into + at + crc_lead_bytes, c"0", CRC_DIGITS)
        into[at + CRC_ROOM - 1] = 2
    topic = PyBytes_FromStringAndSize(<const char *> it.topic.at, it.topic.size)
    return pure.timers.Copy(topic, queue, made)


def delayed_copies(bytes timers, segment, int64_t base, shape, bint timed, recalled):
    cdef Payload log = Payload(segment)
    cdef Bytes at = <Bytes> PyBytes_AS_STRING(timers), record
    cdef Py_ssize_t number, count = PyBytes_GET_SIZE(timers) // TIMER_BYTES
    cdef int64_t due_ms, place
    cdef uint32_t size
    cdef int host = shape.store_host_bytes
    cdef bint crc = shape.prop_crc, asked = timed and bool(recalled)
    cdef list found = []
    cdef Delayed it
    if PyBytes_GET_SIZE(timers) % TIMER_BYTES or base < 0 or host not in (HOST_V4, HOST_V6):
        return pure.timers.delayed_copies(timers, segment, base, shape, timed, recalled)
    for number in range(count):
        due_ms, place = <int64_t> little(at, 8), <int64_t> little(at + 8, 8)
        size = <uint32_t> little(at + 16, 4)
        copy = NotImplemented
        if base <= place and place - base < log.buffer.len and size <= log.buffer.len:
            record = <Bytes> log.buffer.buf + (place - base)
            if read_delayed(record, log.buffer.len - (place - base), size, place, &it):
                # a record that says no time is due at -1, which no timer has
                if timed and (due_ms < 0 or due_ms_of(&it) != due_ms or it.recalls.size):
                    copy = None
                elif asked and it.topic.size and is_recalled(&it, recalled):
                    copy = None
                else:
                    copy = copy_of(record, &it, due_ms, timed, host, crc)
        if copy is NotImplemented:
            one = timers[number * TIMER_BYTES : (number + 1) * TIMER_BYTES]
            (copy,) = pure.timers.delayed_copies(one, segment, base, shape, timed, recalled)
        found.append(copy)
        at += TIMER_BYTES
    return found
