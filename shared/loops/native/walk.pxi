# Walks the log: what its records tell queues and index, and which are whole. Part of
# `compiled`; the twin is `pure.walk`. `native/keys.pxi` hashes and collects keys.

from penstock.shared.formats import delay_levels
from penstock.shared.formats.record_crc import Checksum


def dispatch(
    view,
    int64_t position,
    QueueNumbers queues,
    tuple levels_ms=delay_levels.DELAY_LEVELS_MS,
    bint keyed=False,
):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Properties found
    cdef Py_ssize_t at = 0, left, count = 0, filled = 0, properties_bytes
    cdef Bytes raw, record, properties, name = NULL
    cdef Py_ssize_t name_bytes = -1
    cdef unsigned char *rows
    cdef int64_t last = -1, code, stored_ms
    cdef int kind
    cdef Keys keys = Keys() if keyed else None
    cdef TopicQueues numbers = None
    cdef bytes topic = b"", made
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    raw, left = <Bytes> buffer.buf, buffer.len
    # enough rows for all the records that the piece can have, so that put_row() needs no check
    rows = <unsigned char *> PyMem_RawMalloc((left // SMALLEST + 1) * ROW_BYTES)
    try:
        if rows == NULL:
            raise MemoryError
        while is_whole(raw + at, left, &parts):
            record = raw + at
            # A copy of a record inside a body is whole, too; only its own offset gives it away.
            if i64(record + AT_PHYSICAL_OFFSET) != position + at or not names_queue(record, &parts):
                break
            properties = record + parts.properties_at
            properties_bytes = parts.size - parts.properties_at
            # neighbours mostly share a topic: then one object and one look-up serve a run of them
            if name_bytes != parts.topic_bytes or memcmp(
                name, record + parts.topic_at, name_bytes
            ):
                name, name_bytes = record + parts.topic_at, parts.topic_bytes
                topic = PyBytes_FromStringAndSize(<const char *> name, name_bytes)
                numbers = queues.topic(topic)
                if keys is not None:
                    keys.take_topic(topic)
            kind = record[AT_SYS_FLAG_LOW] & TRANSACTION
            find_properties(properties, properties_bytes, &found)
            stored_ms = stored_ms_of(record)
            if kind != PREPARED and kind != ROLLED_BACK:
                code = code_of_tags(&found, properties, properties_bytes)
                if topic == SCHEDULE_TOPIC:
                    code = delay_levels.due_ms(
                        stored_ms,
                        PyBytes_FromStringAndSize(<const char *> properties, properties_bytes),
                        code,
                        levels_ms,
                    )
                put_row(
                    rows + filled,
                    queues.of(numbers, topic, i32(record + AT_QUEUE_ID)),
                    i64(record + AT_QUEUE_OFFSET),
                    position + at,
                    <uint32_t> parts.size,
                    code,
                )
                filled += ROW_BYTES
            if keys is not None and kind != ROLLED_BACK:
                keys.add_record(&found, properties, properties_bytes, position + at, stored_ms)
            last = position + at
            count += 1
            at += parts.size
            left -= parts.size
        made = PyBytes_FromStringAndSize(<const char *> rows, filled)
    finally:
        PyMem_RawFree(rows)
        PyBuffer_Release(&buffer)
    return forms.Dispatched(at, count, last, made, None if keys is None else keys.entries())


cdef bytes SCHEDULE_TOPIC = delay_levels.SCHEDULE_TOPIC_RAW


def record_starts(buffer_of, int64_t position, checksum):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Py_ssize_t at = 0, left, count = 0
    cdef Py_ssize_t *starts
    cdef Bytes raw
    cdef bint check_both = checksum is Checksum.BOTH, check_record = checksum is Checksum.RECORD
    cdef bint check_body = check_both or checksum is Checksum.BODY
    PyObject_GetBuffer(buffer_of, &buffer, PyBUF_CONTIG_RO)
    raw, left = <Bytes> buffer.buf, buffer.len
    starts = <Py_ssize_t *> PyMem_RawMalloc((left // SMALLEST + 2) * sizeof(Py_ssize_t))
    try:
        if starts == NULL:
            raise MemoryError
        # However long the piece is, the thread that beats can run.
        with nogil:
            while is_whole(raw + at, left, &parts):
                if i64(raw + at + AT_PHYSICAL_OFFSET) != position + at:
                    break
                # as in RocketMQ, the checksum of an empty body is not compared
                if check_body and parts.body_bytes:
                    if u32(raw + at + AT_BODY_CRC) != body_crc(raw + at, &parts):
                        break
                if check_record and not crc_holds(raw + at, parts.size):
                    break
                if check_both and ends_in_crc(raw + at, parts.size):
                    if not crc_holds(raw + at, parts.size):
                        break
                if not names_queue(raw + at, &parts):
                    break
                starts[count] = at
                count += 1
                at += parts.size
                left -= parts.size
            starts[count] = at
        return [starts[number] for number in range(count + 1)]
    finally:
        PyMem_RawFree(starts)
        PyBuffer_Release(&buffer)


cdef inline bint crc_holds(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether a record ends in its checksum."""
    cdef unsigned char digits[CRC_DIGITS]
    if not ends_in_crc(at, size):
        return False
    digits_of(crc_of(at, size - CRC_ROOM), digits)
    return memcmp(at + size - 1 - CRC_DIGITS, digits, CRC_DIGITS) == 0
