# The scheduler's loops: records of the wheel topic to timers, and what is due to copies. Part of
# `compiled`; the twin is `pure.timers`, which gets each record that is not plainly in order.

from penstock.shared.loops.forms import MESSAGE, RECALL
from penstock.shared.names import MAX_TOPIC_BYTES

cdef enum:
    TIMER_BYTES = 24
    MOST_DIGITS = 15  # for a time; a queue's number has fewer
    QUEUE_DIGITS = 9
    TAIL_HEAD_BYTES = AT_BODY - AT_RECONSUME_TIMES
    ADDED_ROOM = 80  # TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS, with numbers of 19 digits

cdef int64_t MOST_MS = 1 << 60
cdef Py_ssize_t MOST_TOPIC = MAX_TOPIC_BYTES
cdef uint32_t OF_MESSAGE = MESSAGE, OF_RECALL = RECALL


cdef struct Delayed:
    # what the properties of a waiting record say of it, and how many checksums they have
    Parts parts
    int64_t stored_ms
    Value out, delay_ms, delay_sec, rolled, recalls, topic, queue, unique_key, crc
    int crcs


cdef inline uint64_t little(Bytes at, int count) noexcept nogil:
    cdef uint64_t value = 0
    while count:
        count -= 1
        value = value << 8 | at[count]
    return value


cdef inline void put_little(unsigned char *at, uint64_t value, int count) noexcept nogil:
    cdef int place
    for place in range(count):
        at[place] = value & 255
        value >>= 8


cdef inline void take_property(Delayed *it, Bytes at, Py_ssize_t size) noexcept nogil:
    if at[0] == c"T" and size > 6 and at[5] == c"_":
        take_value(&it.out, at, size, b"TIMER_OUT_MS\x01", 13)
        take_value(&it.delay_ms, at, size, b"TIMER_DELAY_MS\x01", 15)
        take_value(&it.delay_sec, at, size, b"TIMER_DELAY_SEC\x01", 16)
        take_value(&it.rolled, at, size, b"TIMER_ROLL_TIMES\x01", 17)
        take_value(&it.recalls, at, size, b"TIMER_DEL_UNIQKEY\x01", 18)
    elif at[0] == c"R":
        take_value(&it.topic, at, size, b"REAL_TOPIC\x01", 11)
        take_value(&it.queue, at, size, b"REAL_QID\x01", 9)
    elif at[0] == c"U":
        take_value(&it.unique_key, at, size, b"UNIQ_KEY\x01", 9)
    elif size >= crc_lead_bytes and memcmp(at, crc_lead, crc_lead_bytes) == 0:
        it.crc.at = at
        it.crcs += 1


cdef bint read_delayed(
    Bytes at, Py_ssize_t left, int64_t size, int64_t place, Delayed *it
) noexcept nogil:
    """Whether a record of this size and place stands here, and is plainly in order."""
    cdef Bytes stop, one
    cdef Py_ssize_t length, rest
    memset(it, 0, sizeof(Delayed))
    if size > left or not is_whole(at, size, &it.parts) or it.parts.size != size:
        return False
    if i64(at + AT_PHYSICAL_OFFSET) != place or not names_queue(at, &it.parts):
        return False
    it.stored_ms = stored_ms_of(at)
    if not 0 <= it.stored_ms < MOST_MS:
        return False
    one, rest = at + it.parts.properties_at, size - it.parts.properties_at
    while rest > 0:
        stop = <Bytes> memchr(one, 2, rest)
        length = rest if stop == NULL else stop - one
        if length:
            take_property(it, one, length)
        one += length + 1
        rest -= length + 1
    # if the last value of a name is empty an earlier one counts, and the twin looks for it
    return not (
        it.out.is_empty or it.delay_ms.is_empty or it.delay_sec.is_empty or it.rolled.is_empty
        or it.recalls.is_empty or it.topic.is_empty or it.queue.is_empty or it.unique_key.is_empty
    )


cdef inline int64_t number_of(Value *value, Py_ssize_t most) noexcept nogil:
    """A property's number; -1 if it is not a number, or has too many digits."""
    cdef int64_t number = 0
    cdef Py_ssize_t place
    if not value.size or value.size > most:
        return -1
    for place in range(value.size):
        if not 48 <= value.at[place] <= 57:
            return -1
        number = 10 * number + value.at[place] - 48
    return number


cdef inline int64_t due_ms_of(Delayed *it) noexcept nogil:
    """When it is due; -1 if it does not say."""
    cdef int64_t out = number_of(&it.out, MOST_DIGITS), relative, unit = 1000
    cdef Value *delay = &it.delay_sec
    if out < 0 or it.rolled.size:
        return out
    if not delay.size:
        delay, unit = &it.delay_ms, 1
    if not delay.size:
        return out
    relative = number_of(delay, MOST_DIGITS)
    return max(out, it.stored_ms + relative * unit) if relative >= 0 else -1


def timer_entries(bytes raw, segment, int64_t base, int64_t known, int64_t delivered_ms):
    cdef Payload log = Payload(segment)
    cdef Bytes at = <Bytes> PyBytes_AS_STRING(raw)
    cdef Py_ssize_t number, left, count = PyBytes_GET_SIZE(raw) // ENTRY_BYTES
    cdef Delayed it
    cdef int64_t place, due_ms
    cdef int32_t size
    cdef unsigned char *into
    cdef bytes one, found
    if PyBytes_GET_SIZE(raw) % ENTRY_BYTES or base < 0:
        return pure.timers.timer_entries(raw, segment, base, known, delivered_ms)
    found = PyBytes_FromStringAndSize(NULL, count * TIMER_BYTES)
    into = <unsigned char *> PyBytes_AS_STRING(found)
    for number in range(count):
        place, size = i64(at), i32(at + 8)
        left = log.buffer.len - (place - base) if place >= base else 0
        if left > 0 and size > 0 and size != BLANK_LENGTH:
            if read_delayed(<Bytes> log.buffer.buf + (place - base), left, size, place, &it):
                due_ms = due_ms_of(&it)
                if due_ms >= 0 and (number >= known or due_ms > delivered_ms):
                    put_little(into, due_ms, 8)
                    put_little(into + 8, place, 8)
                    put_little(into + 16, size, 4)
                    put_little(into + 20, OF_RECALL if it.recalls.size else OF_MESSAGE, 4)
                    into += TIMER_BYTES
            else:
                one = raw[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
                one = pure.timers.timer_entries(one, segment, base, number < known, delivered_ms)
                memcpy(into, PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one))
                into += PyBytes_GET_SIZE(one)
        at += ENTRY_BYTES
    return found[: into - <Bytes> PyBytes_AS_STRING(found)]
