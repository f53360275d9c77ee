# Records to the columns of a table. Part of `compiled`; the twin is `pure.columns`, which gets
# whatever is not in order: a key that comes twice, bytes that are not UTF-8, a place outside.

cdef enum:
    BETWEEN = 1
    AFTER = 2
    # entries of one record; with more the twin looks for duplicates, which takes no square time
    MOST_OF_ONE = 64

# the largest size that Arrow's 32-bit offsets allow
cdef Py_ssize_t MOST_PIECES_BYTES = 0x7FFFFFFF


cdef struct Cut:
    # What was cut so far: bytes, and where each piece ends in them.
    unsigned char *bytes
    int32_t *ends
    Py_ssize_t filled


cdef inline void cut(Cut *into, Py_ssize_t number, Bytes piece, Py_ssize_t size) noexcept nogil:
    memcpy(into.bytes + into.filled, piece, size)
    into.filled += size
    into.ends[number] = <int32_t> into.filled


cdef inline bint comes_again(Cut *keys, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Whether the last key equals one of its record's keys before it."""
    cdef Py_ssize_t end, start = keys.ends[first - 1] if first else 0
    cdef Py_ssize_t mine = keys.ends[last - 1] if last else 0
    cdef Py_ssize_t size = keys.ends[last] - mine
    while first < last:
        end = keys.ends[first]
        if end - start == size and memcmp(keys.bytes + start, keys.bytes + mine, size) == 0:
            return True
        start = end
        first += 1
    return False


cdef Py_ssize_t cut_record(
    Bytes at, Py_ssize_t size, Cut *keys, Cut *values, Py_ssize_t count, bint *is_ascii
) noexcept nogil:
    """The number of entries including this record's; -1 where the twin has to decide."""
    cdef Py_ssize_t first = count, place, start = 0, middle = -1
    cdef unsigned char byte, all_bytes = 0
    for place in range(size + 1):
        # the last entry need not have its end
        byte = at[place] if place < size else AFTER
        all_bytes |= byte
        if byte == BETWEEN and middle < 0:
            middle = place
        elif byte == AFTER:
            # without a key or a value it is not an entry
            if start < middle < place - 1:
                if count - first == MOST_OF_ONE:
                    return -1
                cut(keys, count, at + start, middle - start)
                cut(values, count, at + middle + 1, place - middle - 1)
                if comes_again(keys, first, count):
                    return -1
                count += 1
            start, middle = place + 1, -1
    is_ascii[0] = all_bytes < 0x80
    return count


cdef bint are_inside(Bytes at, Bytes sizes, Py_ssize_t count, Py_ssize_t length) noexcept nogil:
    """Whether all pieces lie inside; each is two words, which need not be aligned."""
    cdef int64_t start, size
    cdef Py_ssize_t number
    for number in range(count):
        memcpy(&start, at + 8 * number, 8)
        memcpy(&size, sizes + 8 * number, 8)
        if start < 0 or size < 0 or start > length or size > length - start:
            return False
    return True


def copy_bodies(raw_of, at_of, sizes_of, crcs_of, target_of):
    cdef Payload raw = Payload(raw_of), at = Payload(at_of), sizes = Payload(sizes_of)
    cdef Payload crcs = Payload(crcs_of)
    cdef Py_buffer target
    cdef Py_ssize_t count = at.buffer.len // 8, number, left
    cdef int64_t start, size, crc, wrong = -1
    cdef unsigned char *into
    if (
        at.buffer.len % 8
        or at.buffer.len != sizes.buffer.len or at.buffer.len != crcs.buffer.len
        or not are_inside(<Bytes> at.buffer.buf, <Bytes> sizes.buffer.buf, count, raw.buffer.len)
    ):
        return pure.columns.copy_bodies(raw_of, at_of, sizes_of, crcs_of, target_of)
    PyObject_GetBuffer(target_of, &target, PyBUF_CONTIG)
    try:
        into, left = <unsigned char *> target.buf, target.len
        with nogil:
            for number in range(count):
                memcpy(&start, <Bytes> at.buffer.buf + 8 * number, 8)
                memcpy(&size, <Bytes> sizes.buffer.buf + 8 * number, 8)
                memcpy(&crc, <Bytes> crcs.buffer.buf + 8 * number, 8)
                if size > left:
                    wrong = -2
                    break
                # as in RocketMQ, the checksum of an empty body is not compared
                if size and crc_of(<Bytes> raw.buffer.buf + start, size) & 0x7FFFFFFF != crc:
                    wrong = number
                    break
                memcpy(into, <Bytes> raw.buffer.buf + start, size)
                into += size
                left -= size
    finally:
        PyBuffer_Release(&target)
    if wrong == -2:
        return pure.columns.copy_bodies(raw_of, at_of, sizes_of, crcs_of, target_of)
    return wrong


def cut_properties(raw_of, at_of, sizes_of, tuple names):
    cdef Payload raw = Payload(raw_of), at = Payload(at_of), sizes = Payload(sizes_of)
    cdef Py_ssize_t count = at.buffer.len // 8, number, total = 0, entries = 0
    cdef int64_t start, size
    cdef bint is_ascii, in_order = True
    cdef int32_t *firsts
    cdef Cut keys, values
    cdef void *room
    if (
        at.buffer.len % 8 or at.buffer.len != sizes.buffer.len
        or not are_inside(<Bytes> at.buffer.buf, <Bytes> sizes.buffer.buf, count, raw.buffer.len)
    ):
        return pure.columns.cut_properties(raw_of, at_of, sizes_of, names)
    for number in range(count):
        memcpy(&size, <Bytes> sizes.buffer.buf + 8 * number, 8)
        if size > MOST_PIECES_BYTES - total:
            return pure.columns.cut_properties(raw_of, at_of, sizes_of, names)
        total += size
    # an entry takes at least four bytes, the last one of a record three
    room = PyMem_RawMalloc((count + 1 + 2 * (total // 4 + count)) * sizeof(int32_t) + 2 * total + 1)
    if room == NULL:
        raise MemoryError
    try:
        firsts = <int32_t *> room
        keys.ends = firsts + count + 1
        values.ends = keys.ends + total // 4 + count
        keys.bytes = <unsigned char *> (values.ends + total // 4 + count)
        values.bytes = keys.bytes + total
        keys.filled = values.filled = 0
        firsts[0] = 0
        for number in range(count):
            memcpy(&start, <Bytes> at.buffer.buf + 8 * number, 8)
            memcpy(&size, <Bytes> sizes.buffer.buf + 8 * number, 8)
            entries = cut_record(
                <Bytes> raw.buffer.buf + start, size, &keys, &values, entries, &is_ascii
            )
            if entries < 0 or not is_ascii and not is_utf8(<Bytes> raw.buffer.buf + start, size):
                in_order = False
                break
            firsts[number + 1] = <int32_t> entries
        if in_order:
            return forms.Properties(
                PyBytes_FromStringAndSize(<const char *> firsts, (count + 1) * sizeof(int32_t)),
                PyBytes_FromStringAndSize(<const char *> keys.ends, entries * sizeof(int32_t)),
                PyBytes_FromStringAndSize(<const char *> keys.bytes, keys.filled),
                PyBytes_FromStringAndSize(<const char *> values.ends, entries * sizeof(int32_t)),
                PyBytes_FromStringAndSize(<const char *> values.bytes, values.filled),
                tuple([places_of(name, firsts, count, &keys) for name in names]),
            )
    finally:
        PyMem_RawFree(room)
    return pure.columns.cut_properties(raw_of, at_of, sizes_of, names)


cdef bint is_utf8(Bytes at, Py_ssize_t size):
    """Whether a record's string is UTF-8. Separators are single bytes, so then each piece is."""
    try:
        PyBytes_FromStringAndSize(<const char *> at, size).decode()
    except UnicodeDecodeError:
        return False
    return True


cdef bytes places_of(bytes name, int32_t *firsts, Py_ssize_t count, Cut *keys):
    """Each record's entry with this name, -1 where it has none."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
    cdef Bytes wanted = <Bytes> PyBytes_AS_STRING(name)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name), number, start = 0, entry = 0
    cdef int32_t place
    for number in range(count):
        place = -1
        while entry < firsts[number + 1]:
            if keys.ends[entry] - start == size and memcmp(keys.bytes + start, wanted, size) == 0:
                place = <int32_t> entry
            start = keys.ends[entry]
            entry += 1
        memcpy(PyBytes_AS_STRING(made) + number * sizeof(int32_t), &place, sizeof(int32_t))
    return made
