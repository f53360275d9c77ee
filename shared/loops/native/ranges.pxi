# The reader's loops: queue entries to ranges of the log, and ranges to one piece. Part of
# `compiled`; the twin is `pure.ranges`, which gets whatever is not in order.

cdef enum:
    BLANK_LENGTH = 0x7FFFFFFF

cdef int64_t MOST_OFFSET = 1 << 62


cdef struct Range:
    int64_t start
    int64_t stop


def log_ranges(bytes raw, max_bytes, segment_bytes):
    cdef Bytes at = <Bytes> PyBytes_AS_STRING(raw), stop = at + PyBytes_GET_SIZE(raw)
    cdef int64_t most = min(max_bytes, MOST_OFFSET), segment = min(segment_bytes, MOST_OFFSET)
    cdef int64_t base = -1, end = -1, size = 0, offset
    cdef Py_ssize_t taken = 0, count = 0
    cdef int32_t length
    cdef Range *ranges
    if PyBytes_GET_SIZE(raw) % ENTRY_BYTES or segment <= 0:
        return pure.ranges.log_ranges(raw, max_bytes, segment_bytes)
    # an entry makes at most one range
    ranges = <Range *> PyMem_RawMalloc((len(raw) // ENTRY_BYTES + 1) * sizeof(Range))
    if ranges == NULL:
        raise MemoryError
    try:
        while at < stop:
            offset, length = i64(at), i32(at + 8)
            if length != BLANK_LENGTH:
                if length <= 0 or offset < 0 or (base >= 0 and not base <= offset < end):
                    break
                if stop - at > ENTRY_BYTES and i64(at + ENTRY_BYTES) == offset:
                    break
                if base >= 0 and most - size < length:
                    break
                if base < 0:
                    # a damaged offset, so large that the segment's end would overflow
                    if offset > MOST_OFFSET - segment:
                        return pure.ranges.log_ranges(raw, max_bytes, segment_bytes)
                    base = offset - offset % segment
                    end = base + segment
                if count == 0 or offset != ranges[count - 1].stop:
                    ranges[count].start = offset
                    count += 1
                ranges[count - 1].stop = min(offset + length, end)
                size += ranges[count - 1].stop - offset
            taken += 1
            at += ENTRY_BYTES
        found = PyBytes_FromStringAndSize(<const char *> ranges, count * sizeof(Range))
    finally:
        PyMem_RawFree(ranges)
    return forms.Ranges(base, found, size, taken)


def gather(found):
    cdef Payload segment
    cdef int64_t base, size = 0
    cdef Py_ssize_t number
    cdef bytes packed
    cdef Range one
    cdef unsigned char *into
    # First the sum, because the result is allocated once. Then each range is compared with its
    # segment before it is copied, since an offset that was read from a queue cannot be trusted.
    for _, _, packed in found:
        if PyBytes_GET_SIZE(packed) % sizeof(Range):
            return pure.ranges.gather(found)
        for number in range(PyBytes_GET_SIZE(packed) // <Py_ssize_t> sizeof(Range)):
            memcpy(&one, PyBytes_AS_STRING(packed) + number * sizeof(Range), sizeof(Range))
            if one.start < 0 or one.stop < one.start or one.stop - one.start > MOST_OFFSET - size:
                return pure.ranges.gather(found)
            size += one.stop - one.start
    made = PyBytes_FromStringAndSize(NULL, size)
    into = <unsigned char *> PyBytes_AS_STRING(made)
    for view, base, packed in found:
        segment = Payload(view)
        for number in range(PyBytes_GET_SIZE(packed) // <Py_ssize_t> sizeof(Range)):
            memcpy(&one, PyBytes_AS_STRING(packed) + number * sizeof(Range), sizeof(Range))
            if base < 0 or one.start < base or one.stop - base > segment.buffer.len:
                return pure.ranges.gather(found)
            memcpy(into, <Bytes> segment.buffer.buf + (one.start - base), one.stop - one.start)
            into += one.stop - one.start
    return made
