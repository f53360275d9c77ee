# The fields of named records, for the columns of a table. Part of `compiled`; the twin is
# `pure.columns`, which gets whatever is not in order: arrays that do not fit together.

cdef enum:
    # fields of a record, as the twin lists them
    FIELDS = 8


cdef inline int64_t word(Payload words, Py_ssize_t number) noexcept nogil:
    """One of an array's numbers, which need not be aligned. A single number counts for all."""
    cdef int64_t found
    memcpy(&found, <Bytes> words.buffer.buf + (8 * number if words.buffer.len > 8 else 0), 8)
    return found


cdef bint ascend(Payload ends, Py_ssize_t most) noexcept nogil:
    """Whether these ends do not decrease, and none is past `most`."""
    cdef int64_t end, before = 0
    cdef Py_ssize_t number
    for number in range(ends.buffer.len // 8):
        end = word(ends, number)
        if not before <= end <= most:
            return False
        before = end
    return True


cdef bint put_fields(
    Bytes at, Py_ssize_t start, Py_ssize_t size, int64_t physical, int64_t offset, int64_t queue_id,
    Bytes topic, Py_ssize_t topic_bytes, unsigned char *into, Py_ssize_t step
) noexcept nogil:
    """Whether this is the record that is named. Puts its fields, `step` bytes apart."""
    cdef Parts parts
    cdef int64_t fields[FIELDS]
    cdef int field
    if (
        physical < 0
        or not is_whole(at, size, &parts) or parts.size != size
        or i64(at + AT_PHYSICAL_OFFSET) != physical
        or i64(at + AT_QUEUE_OFFSET) != offset or i32(at + AT_QUEUE_ID) != queue_id
        or parts.topic_bytes != topic_bytes
        or memcmp(at + parts.topic_at, topic, topic_bytes) != 0
        or not names_queue(at, &parts)
    ):
        return False
    fields[0] = start + parts.body_at
    fields[1] = parts.body_bytes
    fields[2] = start + parts.properties_at
    fields[3] = size - parts.properties_at
    fields[4] = i32(at + AT_BODY_CRC)
    fields[5] = i32(at + AT_SYS_FLAG)
    fields[6] = i64(at + AT_BORN_TIMESTAMP)
    fields[7] = stored_ms_of(at)
    for field in range(FIELDS):
        memcpy(into + field * step, &fields[field], 8)
    return True


cdef bint fit_together(
    Py_ssize_t count, list of_each, Payload queues, Payload topics, Payload ends
):
    """Whether there is one of each for each record, or a single queue or end for all."""
    for each in of_each:
        if (<Payload> each).buffer.len != 8 * count:
            return False
    for each in (queues, ends):
        if (<Payload> each).buffer.len != 8 and (<Payload> each).buffer.len != 8 * count:
            return False
    return ascend(ends, topics.buffer.len)


def record_fields(raw_of, named, topics_of, ends_of, into_of):
    cdef Payload raw = Payload(raw_of), topics = Payload(topics_of), ends = Payload(ends_of)
    cdef Payload starts, sizes, physical, offsets, queues
    cdef Py_buffer into
    cdef Py_ssize_t count, number, end = 0, topic_at = 0
    cdef int64_t start, size, wrong = -1
    starts, sizes, physical, offsets, queues = map(Payload, named)
    count = starts.buffer.len // 8
    PyObject_GetBuffer(into_of, &into, PyBUF_CONTIG)
    try:
        if (
            into.len != 8 * FIELDS * count
            or not fit_together(count, [starts, sizes, physical, offsets], queues, topics, ends)
        ):
            return pure.columns.record_fields(raw_of, named, topics_of, ends_of, into_of)
        with nogil:
            for number in range(count):
                start, size = word(starts, number), word(sizes, number)
                if ends.buffer.len > 8:
                    topic_at = end
                end = word(ends, number)
                if (
                    start < 0 or size < 0
                    or start > raw.buffer.len or size > raw.buffer.len - start
                    or not put_fields(
                        <Bytes> raw.buffer.buf + start, start, size, word(physical, number),
                        word(offsets, number), word(queues, number),
                        <Bytes> topics.buffer.buf + topic_at, end - topic_at,
                        <unsigned char *> into.buf + 8 * number, 8 * count,
                    )
                ):
                    wrong = number
                    break
    finally:
        PyBuffer_Release(&into)
    return wrong
