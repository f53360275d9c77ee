# Frames of produced records: check them, and put them into the log, stamped. Part of
# `compiled`; the twin is `pure.frame`, which refuses what looks wrong here, or accepts it.


def check_frame(
    frame,
    runs,
    max_record_bytes,
    max_body_bytes=1 << 31,
    shape=record_layout.Shape(),
):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Py_ssize_t at = 0, left, topic_bytes
    cdef int64_t most_record = min(max_record_bytes, 1 << 31), count
    cdef int64_t most_body = min(max_body_bytes, 1 << 31)
    cdef int64_t queue
    cdef int own = STORE_V6 if shape.store_host_bytes == HOST_V6 else 0
    cdef Bytes raw, name
    cdef bytes topic
    cdef list starts = []
    cdef bint good = True
    PyObject_GetBuffer(frame, &buffer, PyBUF_CONTIG_RO)
    try:
        raw, left = <Bytes> buffer.buf, buffer.len
        for topic, queue_id, number in runs:
            # outside of these limits the variables would wrap, and a wrong queue could seem right
            if not -(2**31) <= queue_id < 2**31 or not 0 <= number < 2**31:
                good = False
                break
            topic_bytes, name = PyBytes_GET_SIZE(topic), <Bytes> PyBytes_AS_STRING(topic)
            queue, count = queue_id, number
            while count:
                if (
                    not is_whole(raw + at, left, &parts)
                    or parts.size > most_record
                    or parts.body_bytes > most_body
                    or i32(raw + at + AT_QUEUE_ID) != queue
                    or raw[at + AT_SYS_FLAG_LOW] & (STORE_V6 | TRANSACTION | INNER_BATCH) != own
                    or parts.topic_bytes != topic_bytes
                    or memcmp(raw + at + parts.topic_at, name, topic_bytes) != 0
                    # last, because it reads the whole body
                    or u32(raw + at + AT_BODY_CRC) != body_crc(raw + at, &parts)
                ):
                    good = False
                    break
                starts.append(at)
                at += parts.size
                left -= parts.size
                count -= 1
            if not good:
                break
        if good and not left:
            starts.append(at)
            return starts
    finally:
        PyBuffer_Release(&buffer)
    return pure.frame.check_frame(frame, runs, max_record_bytes, max_body_bytes, shape)


cdef inline bint names_reserved(Bytes properties, Py_ssize_t length) noexcept nogil:
    """Whether DELAY or the checksum's name stands anywhere before a separator.

    It may be the end of a longer name, so this is only a suspicion, and the twin decides.
    """
    cdef Bytes at = properties, stop = properties + length
    while True:
        at = <Bytes> memchr(at, 1, stop - at)
        if at == NULL:
            return False
        at += 1
        if at - properties >= 6 and memcmp(at - 6, b"DELAY\x01", 6) == 0:
            return True
        if at - properties >= crc_lead_bytes:
            if memcmp(at - crc_lead_bytes, crc_lead, crc_lead_bytes) == 0:
                return True


def check_properties(frame, list starts, bint prop_crc):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Py_ssize_t at, number, length
    cdef Bytes raw, properties
    cdef bint good = True
    PyObject_GetBuffer(frame, &buffer, PyBUF_CONTIG_RO)
    try:
        raw = <Bytes> buffer.buf
        for number in range(len(starts) - 1):
            # starts come from check_frame, but are checked all the same
            at = starts[number]
            if at < 0 or at > buffer.len or not is_whole(raw + at, buffer.len - at, &parts):
                good = False
                break
            properties = raw + at + parts.properties_at
            length = parts.size - parts.properties_at
            if length and properties[length - 1] == 0:
                good = False
                break
            if prop_crc:
                if length < CRC_ROOM or not ends_in_crc(raw + at, parts.size):
                    good = False
                    break
                length -= CRC_ROOM
            if names_reserved(properties, length):
                good = False
                break
    finally:
        PyBuffer_Release(&buffer)
    if not good:
        pure.frame.check_properties(frame, starts, prop_crc)


def put_stamped(target, frame, list starts, list queue_offsets, int64_t position, stamp):
    cdef Py_buffer into, buffer
    cdef Py_ssize_t count = len(starts) - 1, number, at, size, first, stop, born
    cdef Py_ssize_t host_bytes
    cdef int64_t queue_offset, stored_ms = stamp.stored_ms
    cdef bint prop_crc = stamp.prop_crc
    cdef bytes host = stamp.host
    cdef Bytes raw, address = <Bytes> PyBytes_AS_STRING(host)
    cdef unsigned char *record
    host_bytes = PyBytes_GET_SIZE(host)
    if len(queue_offsets) != count:
        raise ValueError(f"{count} records have {len(queue_offsets)} queue offsets")
    PyObject_GetBuffer(target, &into, PyBUF_CONTIG)
    try:
        PyObject_GetBuffer(frame, &buffer, PyBUF_CONTIG_RO)
        try:
            raw = <Bytes> buffer.buf
            first, stop = starts[0], starts[count]
            if stop - first > into.len:
                raise ValueError(f"{stop - first} bytes of records do not fit in {into.len}")
            for number in range(count):
                at, stop = starts[number], starts[number + 1]
                queue_offset = queue_offsets[number]
                # The caller has checked the frame, but this stores through a pointer into the log:
                # places out of order would write past the target, or over an earlier record.
                size = stop - at
                if at < first or first < 0 or stop > buffer.len or size < SMALLEST:
                    raise ValueError("the places of records are in order, and in their frame")
                born = V6_EXTRA if raw[at + AT_SYS_FLAG_LOW] & BORN_V6 else 0
                if AT_STORE_HOST + born + host_bytes > size or stop - first > into.len:
                    raise ValueError("a record has room for what is stamped")
                record = <unsigned char *> into.buf + (at - first)
                memcpy(record + CLAIM, raw + at + CLAIM, size - CLAIM)
                put64(record + AT_QUEUE_OFFSET, queue_offset)
                put64(record + AT_PHYSICAL_OFFSET, position + (at - first))
                put64(record + AT_STORE_TIMESTAMP + born, stored_ms)
                memcpy(record + AT_STORE_HOST + born, address, host_bytes)
                if prop_crc:
                    put_digits(record, raw + at, size)
                # Without size and magic the bytes are not a record. So these are stored last, and a
                # writer that is killed at any instruction leaves no unstamped record.
                keep_order()
                memcpy(record, raw + at, CLAIM)
        finally:
            PyBuffer_Release(&buffer)
    finally:
        PyBuffer_Release(&into)
