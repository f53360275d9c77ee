# A broker's answer to a consumer: its messages, their bodies, or where they begin. Part of
# `compiled`; the twin is `pure.answer`. `native/message.pxi` says what a message is.

# no record can name it: a queue's id has 32 bits
cdef int64_t ANY_QUEUE = -(1 << 40)


cdef enum Made:
    MESSAGES
    BODIES
    STARTS


cdef inline bint has_word(Bytes at, Py_ssize_t left, Bytes word, Py_ssize_t size) noexcept nogil:
    cdef Bytes found, stop = at + left
    while stop - at >= size:
        found = <Bytes> memchr(at, word[0], stop - at - size + 1)
        if found == NULL:
            return False
        if memcmp(found, word, size) == 0:
            return True
        at = found + 1
    return False


def messages(payload, tuple place, queue_id, tuple offsets, max_body_bytes, bytes name):
    return read_part(payload, place, queue_id, offsets, max_body_bytes, name, MESSAGES)


def bodies(payload, tuple place, queue_id, tuple offsets, max_body_bytes, bytes name):
    return read_part(payload, place, queue_id, offsets, max_body_bytes, name, BODIES)


def part_starts(payload, tuple place, queue_id, tuple offsets, bytes name):
    return read_part(payload, place, queue_id, offsets, 0, name, STARTS)


cdef tuple read_part(
    payload, tuple place, queue_id, tuple offsets, max_body_bytes, bytes name, Made what
):
    cdef Payload whole = Payload(payload)
    cdef Bytes raw = <Bytes> whole.buffer.buf, word = <Bytes> PyBytes_AS_STRING(name)
    cdef Py_ssize_t word_bytes = PyBytes_GET_SIZE(name), at, stop, size
    cdef int64_t offset, low, high, most = min(max_body_bytes, 1 << 62), queue = ANY_QUEUE
    cdef bint named = False, is_record
    cdef Parts parts
    cdef Message message
    cdef list made = []
    cdef array.array starts = None
    cdef Py_ssize_t count = 0
    at, stop = place
    low, high = offsets
    if queue_id is not None:
        queue = queue_id
    # from here on `stop` bounds every record, and this bounds `stop`
    if not 0 <= at <= stop <= whole.buffer.len:
        raise ValueError(
            f"a part of {whole.buffer.len} bytes is in them, {at} to {stop} is not"
        )
    if not word_bytes:
        raise ValueError("a name is not empty")
    if what == STARTS:
        starts = array.clone(NUMBERS, (stop - at) // SMALLEST, False)
    while stop - at >= SMALLEST:
        size = i32(raw + at)
        if size < SMALLEST or size > stop - at:
            break
        if queue != ANY_QUEUE:
            offset = i64(raw + at + AT_QUEUE_OFFSET)
            if i32(raw + at + AT_QUEUE_ID) != queue or offset < low or offset >= high:
                break
            low = offset + 1
        is_record = is_whole(raw + at, size, &parts) and parts.size == size
        if what == STARTS:
            starts.data.as_longlongs[count] = at
            count += 1
        elif what == BODIES and is_record and has_plain_body(raw + at, &parts):
            made.append(piece_of(raw + at + parts.body_at, parts.body_bytes))
        else:
            # without __init__, which would ask for the buffer again
            message = Message.__new__(Message)
            message.payload, message.at, message.size, message.most = whole, raw + at, size, most
            made.append(message)
        if not named and is_record and names_queue(raw + at, &parts):
            named = has_word(
                raw + at + parts.properties_at, size - parts.properties_at, word, word_bytes
            )
        at += size
    if what == STARTS:
        array.resize(starts, count)
        return starts, at, named
    return made, at, named


cdef inline bint has_head(Message message) noexcept:
    """Whether a record's fields up to the store time are there, even with an IPv6 sender."""
    return message.size >= SMALLEST


cdef inline bint is_exact(Message message, Parts *parts) noexcept:
    return is_whole(message.at, message.size, parts) and parts.size == message.size


cdef inline bint has_plain_body(Bytes at, Parts *parts) noexcept:
    """Whether the stored body is what was sent: not compressed, and with the right checksum."""
    if at[AT_SYS_FLAG_LOW] & COMPRESSED:
        return False
    return u32(at + AT_BODY_CRC) == body_crc(at, parts)


cdef inline bytes piece_of(Bytes at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> at, size)


cdef object twin_of(Message message):
    return pure.message.Message(message.record, message.most)


cdef object unusual(Message message, str field):
    """What the twin returns for a field."""
    return getattr(twin_of(message), field)
