# cython: language_level=3, freethreading_compatible=False
"""The loops that run once per message, compiled. `pure_frame`, `pure_walk`, `pure_encode`,
`pure_ranges` and `pure_message` are the same in Python, say what each function is for, and decide: what looks unusual here goes to them, so
every refusal is theirs, word for word.

Bytes are looked at through pointers. So each length is bounded by what the caller gave before it
leads anywhere, and nothing here is read or written beside that, whatever the bytes are.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_CONTIG,
    PyBUF_CONTIG_RO,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from penstock.shared import pure_encode, pure_frame, pure_message, pure_ranges, pure_walk
from penstock.shared.compression import MAX_BODY_BYTES
from penstock.shared.consume_queue import tags_code
from penstock.shared.properties import find_property
from penstock.shared.record_crc import PROP_CRC_LEAD, PROP_CRC_ROOM, Checksum
from penstock.shared.string_hash import string_hash

INTERFACE = 4

cdef extern from "native_crc.h" nogil:
    void crc_begin(int portable)
    uint32_t crc_of(const unsigned char *at, size_t length)
    uint32_t crc_on(uint32_t before, const unsigned char *at, size_t length)
    void keep_order()

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_FromKindAndData(int kind, const void *buffer, Py_ssize_t size)

ctypedef const unsigned char *Bytes

cdef enum:
    MAGIC_V1 = <int> 0xDAA320A7
    MAGIC_V2 = <int> 0xDAA320AB
    SMALLEST = 91
    BODY_AT = 88  # with IPv4 hosts
    V6_EXTRA = 12
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    TRANSACTION = 0x0C
    PREPARED = 0x04
    ROLLED_BACK = 0x0C
    ENTRY_BYTES = 20
    CRC_ROOM = 20
    MOST_PROPERTIES = 32767
    COMPRESSED = 0x01
    BLANK_LENGTH = 0x7FFFFFFF

cdef int64_t ANY_QUEUE = -(1 << 40)

crc_begin(0)


def crc32(data, bint portable=False):
    """CRC-32 of some bytes, as zlib's; `portable` as where the processor does not multiply."""
    cdef Py_buffer buffer
    cdef uint32_t crc
    PyObject_GetBuffer(data, &buffer, PyBUF_CONTIG_RO)
    try:
        if portable:
            crc_begin(1)
        crc = crc_of(<Bytes> buffer.buf, buffer.len)
    finally:
        if portable:
            crc_begin(0)
        PyBuffer_Release(&buffer)
    return crc


# --- words of a record; all are big-endian ---

cdef inline uint32_t u32(Bytes at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline int32_t i32(Bytes at) noexcept nogil:
    return <int32_t> u32(at)


cdef inline int64_t i64(Bytes at) noexcept nogil:
    return <int64_t> (<uint64_t> u32(at) << 32 | u32(at + 4))


cdef inline int i16(Bytes at) noexcept nogil:
    return <signed char> at[0] * 256 + at[1]


cdef inline void put32(unsigned char *at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 255
    at[2] = value >> 8 & 255
    at[3] = value & 255


cdef inline void put64(unsigned char *at, int64_t value) noexcept nogil:
    put32(at, <uint32_t> (<uint64_t> value >> 32))
    put32(at + 4, <uint32_t> value)


cdef struct Parts:
    # Where the parts of a record are, from its beginning on.
    Py_ssize_t size
    Py_ssize_t body_at
    Py_ssize_t body_bytes
    Py_ssize_t topic_at
    Py_ssize_t topic_bytes
    Py_ssize_t properties_at


cdef inline bint is_whole(Bytes at, Py_ssize_t left, Parts *parts) noexcept nogil:
    """Whether a record begins here whose lengths add up to its size, and that within `left`."""
    cdef Py_ssize_t topic_end
    cdef int lead = 1
    if left < SMALLEST:
        return False
    parts.size = i32(at)
    if parts.size < SMALLEST or parts.size > left:
        return False
    if i32(at + 4) != MAGIC_V1:
        if i32(at + 4) != MAGIC_V2:
            return False
        lead = 2
    parts.body_at = BODY_AT
    if at[39] & BORN_V6:
        parts.body_at += V6_EXTRA
    if at[39] & STORE_V6:
        parts.body_at += V6_EXTRA
    if parts.body_at > parts.size:
        return False
    parts.body_bytes = i32(at + parts.body_at - 4)
    parts.topic_at = parts.body_at + parts.body_bytes + lead
    if parts.body_bytes < 0 or parts.topic_at + 2 > parts.size:
        return False
    if lead == 1:
        parts.topic_bytes = <signed char> at[parts.topic_at - 1]
    else:
        parts.topic_bytes = i16(at + parts.topic_at - 2)
    topic_end = parts.topic_at + parts.topic_bytes
    if parts.topic_bytes < 0 or topic_end + 2 > parts.size:
        return False
    parts.properties_at = topic_end + 2
    return i16(at + topic_end) == parts.size - parts.properties_at


cdef inline bint names_queue(Bytes at, Parts *parts) noexcept nogil:
    """Whether a whole record can be of the queue that it names: the rule of record.py."""
    cdef Bytes topic = at + parts.topic_at
    cdef Py_ssize_t last = parts.topic_bytes - 1, place
    if at[12] > 127 or at[20] > 127 or last < 0:
        return False
    if last < 2 and topic[0] == 0x2E and topic[last] == 0x2E:
        return False
    for place in range(parts.topic_bytes):
        if topic[place] <= 0x20 or topic[place] >= 0x7F or topic[place] == 0x2F:
            return False
    return True


cdef inline uint32_t body_crc(Bytes at, Parts *parts) noexcept nogil:
    if not parts.body_bytes:
        return 0
    return crc_of(at + parts.body_at, parts.body_bytes) & 0x7FFFFFFF


cdef bytes _LEAD = PROP_CRC_LEAD
cdef Bytes crc_lead = <Bytes> PyBytes_AS_STRING(_LEAD)
cdef Py_ssize_t crc_lead_bytes = PyBytes_GET_SIZE(_LEAD)


cdef inline void digits_of(uint32_t crc, unsigned char *digits) noexcept nogil:
    """The ten digits of a record's checksum: least significant first."""
    cdef int place
    crc &= 0x7FFFFFFF
    for place in range(10):
        digits[place] = 48 + crc % 10
        crc //= 10


cdef inline void put_digits(unsigned char *record, Bytes head, Py_ssize_t size) noexcept nogil:
    """Put the checksum to a record's end; its first 8 bytes stand at `head` as yet."""
    digits_of(crc_on(crc_of(head, 8), record + 8, size - CRC_ROOM - 8), record + size - 11)


cdef inline bint ends_in_crc(Bytes at, Py_ssize_t size) noexcept nogil:
    """Whether the checksum, or the room for it, is a record's last property."""
    cdef Bytes room = at + size - CRC_ROOM
    return memcmp(room, crc_lead, crc_lead_bytes) == 0 and room[CRC_ROOM - 1] == 2


# --- frames ---

def check_frame(
    frame,
    runs,
    max_record_bytes,
    max_body_bytes=1 << 31,
    shape=pure_frame.Shape(),
):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Py_ssize_t at = 0, left, topic_bytes
    cdef int64_t most_record = min(max_record_bytes, 1 << 31), count
    cdef int64_t most_body = min(max_body_bytes, 1 << 31)
    cdef int64_t queue
    cdef int own = STORE_V6 if shape.store_host_bytes == 20 else 0
    cdef Bytes raw, name
    cdef bytes topic
    cdef list starts = []
    cdef bint good = True
    PyObject_GetBuffer(frame, &buffer, PyBUF_CONTIG_RO)
    try:
        raw, left = <Bytes> buffer.buf, buffer.len
        for topic, queue_id, number in runs:
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
                    or i32(raw + at + 12) != queue
                    or raw[at + 39] & (STORE_V6 | TRANSACTION) != own
                    or parts.topic_bytes != topic_bytes
                    or memcmp(raw + at + parts.topic_at, name, topic_bytes) != 0
                    or u32(raw + at + 8) != body_crc(raw + at, &parts)
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
    return pure_frame.check_frame(frame, runs, max_record_bytes, max_body_bytes, shape)


cdef inline bint names_reserved(Bytes properties, Py_ssize_t length) noexcept nogil:
    """Whether DELAY or the checksum's name stands anywhere before a separator."""
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
        pure_frame.check_properties(frame, starts, prop_crc)


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
                size = stop - at
                if at < first or first < 0 or stop > buffer.len or size < SMALLEST:
                    raise ValueError("the places of records are in order, and in their frame")
                born = V6_EXTRA if raw[at + 39] & BORN_V6 else 0
                if 64 + born + host_bytes > size or stop - first > into.len:
                    raise ValueError("a record has room for what is stamped")
                record = <unsigned char *> into.buf + (at - first)
                memcpy(record + 8, raw + at + 8, size - 8)
                put64(record + 20, queue_offset)
                put64(record + 28, position + (at - first))
                put64(record + 56 + born, stored_ms)
                memcpy(record + 64 + born, address, host_bytes)
                if prop_crc:
                    put_digits(record, raw + at, size)
                # size and magic make it a record, so they come last, whoever dies before
                keep_order()
                memcpy(record, raw + at, 8)
        finally:
            PyBuffer_Release(&buffer)
    finally:
        PyBuffer_Release(&into)


# --- walking the log ---

cdef struct Value:
    # a property's value; `is_empty` where the last property of the name has none
    Bytes at
    Py_ssize_t size
    bint is_empty


cdef struct Properties:
    Value tags
    Value keys
    Value unique_key


cdef inline void take_value(
    Value *value, Bytes at, Py_ssize_t size, const char *lead, Py_ssize_t lead_bytes
) noexcept nogil:
    """Note a property of the name that `lead` begins with; a later one replaces it."""
    if size >= lead_bytes and memcmp(at, lead, lead_bytes) == 0:
        value.at = at + lead_bytes
        value.size = size - lead_bytes
        value.is_empty = value.size == 0


cdef inline void find_properties(Bytes at, Py_ssize_t left, Properties *found) noexcept nogil:
    cdef Bytes stop
    cdef Py_ssize_t size
    memset(found, 0, sizeof(Properties))
    while left > 0:
        stop = <Bytes> memchr(at, 2, left)
        size = left if stop == NULL else stop - at
        if size:
            if at[0] == c"T":
                take_value(&found.tags, at, size, b"TAGS\x01", 5)
            elif at[0] == c"K":
                take_value(&found.keys, at, size, b"KEYS\x01", 5)
            elif at[0] == c"U":
                take_value(&found.unique_key, at, size, b"UNIQ_KEY\x01", 9)
        at += size + 1
        left -= size + 1


cdef inline bint hash_on(Bytes at, Py_ssize_t size, uint32_t *code) noexcept nogil:
    """Java's String.hashCode, continued from `code`; False where a byte is not ASCII."""
    cdef uint32_t value = code[0]
    cdef unsigned char any_bits = 0
    cdef Py_ssize_t place
    for place in range(size):
        value = 31 * value + at[place]
        any_bits |= at[place]
    code[0] = value
    return any_bits < 128


cdef bytes text_of(Value *value, Bytes properties, Py_ssize_t size, str name):
    """A value as bytes; an earlier one of the name where the last is empty."""
    if value.is_empty:
        raw = PyBytes_FromStringAndSize(<const char *> properties, size)
        return find_property(raw, name.encode())
    return PyBytes_FromStringAndSize(<const char *> value.at, value.size)


cdef int64_t code_of_tags(Properties *found, Bytes properties, Py_ssize_t size) except? -1:
    cdef uint32_t code = 0
    if not found.tags.is_empty and hash_on(found.tags.at, found.tags.size, &code):
        return <int32_t> code
    tags = text_of(&found.tags, properties, size, "TAGS")
    return tags_code(tags.decode("utf-8", "replace"))


cdef class Keys:
    """What goes into the index, three words a key."""

    cdef int64_t *words
    cdef Py_ssize_t count, room
    cdef bytes topic
    cdef uint32_t topic_code
    cdef bint is_ascii

    def __cinit__(self):
        self.room = 4096
        self.words = <int64_t *> PyMem_RawMalloc(self.room * 24)
        if self.words == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.words)

    cdef void take_topic(self, bytes topic):
        self.topic = topic
        self.topic_code = 0
        self.is_ascii = hash_on(
            <Bytes> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &self.topic_code
        )
        hash_on(b"#", 1, &self.topic_code)

    cdef int put(self, int64_t code, int64_t offset, int64_t stored_ms) except -1:
        cdef int64_t *more
        if self.count == self.room:
            more = <int64_t *> PyMem_RawRealloc(self.words, 2 * self.room * 24)
            if more == NULL:
                raise MemoryError
            self.words = more
            self.room *= 2
        self.words[3 * self.count] = code
        self.words[3 * self.count + 1] = offset
        self.words[3 * self.count + 2] = stored_ms
        self.count += 1
        return 0

    cdef int add(self, Bytes at, Py_ssize_t size, int64_t offset, int64_t stored_ms) except -1:
        cdef uint32_t code = self.topic_code
        if not hash_on(at, size, &code) or not self.is_ascii:
            text = self.topic + b"#" + PyBytes_FromStringAndSize(<const char *> at, size)
            code = string_hash(text.decode("utf-8", "replace")) & 0xFFFFFFFF
        if <int32_t> code < 0:
            code = 0 - code
        # Java's abs(-2**31) stays negative, and counts as 0
        return self.put(0 if code > 0x7FFFFFFF else code, offset, stored_ms)

    cdef int add_words(self, Bytes at, Py_ssize_t left, int64_t offset, int64_t ms) except -1:
        cdef Bytes stop
        cdef Py_ssize_t size
        while left > 0:
            stop = <Bytes> memchr(at, 32, left)
            size = left if stop == NULL else stop - at
            if size:
                self.add(at, size, offset, ms)
            at += size + 1
            left -= size + 1
        return 0

    cdef int add_record(
        self, Properties *found, Bytes properties, Py_ssize_t size, int64_t offset, int64_t ms
    ) except -1:
        if found.unique_key.size:
            self.add(found.unique_key.at, found.unique_key.size, offset, ms)
        elif found.unique_key.is_empty:
            key = text_of(&found.unique_key, properties, size, "UNIQ_KEY")
            if key:
                self.add(<Bytes> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), offset, ms)
        if found.keys.is_empty:
            key = text_of(&found.keys, properties, size, "KEYS")
            self.add_words(<Bytes> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), offset, ms)
        else:
            self.add_words(found.keys.at, found.keys.size, offset, ms)
        return 0

    cdef object entries(self):
        # these bring numpy, which takes longer to import than a start may
        import numpy as np

        from penstock.shared.index_file import Entries

        raw = PyBytes_FromStringAndSize(<const char *> self.words, self.count * 24)
        words = np.frombuffer(raw, np.int64).reshape(-1, 3)
        return Entries(*(np.ascontiguousarray(words[:, column]) for column in range(3)))


def dispatch(view, int64_t position, tuple levels_ms=pure_walk.DELAY_LEVELS_MS, bint keyed=False):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Properties found
    cdef Py_ssize_t at = 0, left, count = 0, run = 0, filled = 0, properties_bytes
    cdef Bytes raw, record, properties, name = NULL
    cdef Py_ssize_t name_bytes = -1
    cdef unsigned char *rows
    cdef int32_t queue_id = 0, queue
    cdef int64_t expected = -1, queue_offset, last = -1, code, stored_ms
    cdef int kind
    cdef bint in_queue
    cdef Keys keys = Keys() if keyed else None
    cdef bytes topic = b""
    runs = {}
    entries = None
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    raw, left = <Bytes> buffer.buf, buffer.len
    rows = <unsigned char *> PyMem_RawMalloc((left // SMALLEST + 1) * ENTRY_BYTES)
    try:
        if rows == NULL:
            raise MemoryError
        while is_whole(raw + at, left, &parts):
            record = raw + at
            if i64(record + 28) != position + at or not names_queue(record, &parts):
                break
            properties = record + parts.properties_at
            properties_bytes = parts.size - parts.properties_at
            if name_bytes != parts.topic_bytes or memcmp(
                name, record + parts.topic_at, name_bytes
            ):
                name, name_bytes = record + parts.topic_at, parts.topic_bytes
                topic = PyBytes_FromStringAndSize(<const char *> name, name_bytes)
                entries = flush(entries, rows, &run, filled)
                if keys is not None:
                    keys.take_topic(topic)
            kind = record[39] & TRANSACTION
            in_queue = kind != PREPARED and kind != ROLLED_BACK
            find_properties(properties, properties_bytes, &found)
            stored_ms = i64(record + 56 + (V6_EXTRA if record[39] & BORN_V6 else 0))
            if in_queue:
                queue, queue_offset = i32(record + 12), i64(record + 20)
                if entries is None or queue != queue_id or queue_offset != expected:
                    flush(entries, rows, &run, filled)
                    queue_id = queue
                    entries = entries_for(runs, topic, queue, queue_offset)
                expected = queue_offset + 1
                code = code_of_tags(&found, properties, properties_bytes)
                if topic == SCHEDULE_TOPIC:
                    code = pure_walk.due_ms(
                        stored_ms,
                        PyBytes_FromStringAndSize(<const char *> properties, properties_bytes),
                        code,
                        levels_ms,
                    )
                put64(rows + filled, position + at)
                put32(rows + filled + 8, <uint32_t> parts.size)
                put64(rows + filled + 12, code)
                filled += ENTRY_BYTES
            if keys is not None and kind != ROLLED_BACK:
                keys.add_record(&found, properties, properties_bytes, position + at, stored_ms)
            last = position + at
            count += 1
            at += parts.size
            left -= parts.size
        flush(entries, rows, &run, filled)
    finally:
        PyMem_RawFree(rows)
        PyBuffer_Release(&buffer)
    return pure_walk.Dispatched(at, count, last, runs, None if keys is None else keys.entries())


cdef bytes SCHEDULE_TOPIC = pure_walk.SCHEDULE_TOPIC.encode()


cdef bytearray entries_for(dict runs, bytes topic, int32_t queue_id, int64_t queue_offset):
    """The entries that one with this offset is to be appended to."""
    cdef list pieces = runs.setdefault((topic, queue_id), [])
    if pieces:
        first, entries = pieces[-1]
        if first + len(entries) // ENTRY_BYTES == queue_offset:
            return entries
    entries = bytearray()
    pieces.append((queue_offset, entries))
    return entries


cdef object flush(object entries, unsigned char *rows, Py_ssize_t *run, Py_ssize_t filled):
    """Append what stands in `rows` from `run` on; the next entries are others'."""
    if entries is not None and filled > run[0]:
        (<bytearray> entries).extend(
            PyBytes_FromStringAndSize(<const char *> rows + run[0], filled - run[0])
        )
    run[0] = filled
    return None


def record_starts(buffer_of, int64_t position, checksum):
    cdef Py_buffer buffer
    cdef Parts parts
    cdef Py_ssize_t at = 0, left, count = 0
    cdef Py_ssize_t *starts
    cdef Bytes raw
    cdef bint check_body = checksum is Checksum.BODY, check_record = checksum is Checksum.RECORD
    PyObject_GetBuffer(buffer_of, &buffer, PyBUF_CONTIG_RO)
    raw, left = <Bytes> buffer.buf, buffer.len
    starts = <Py_ssize_t *> PyMem_RawMalloc((left // SMALLEST + 2) * sizeof(Py_ssize_t))
    try:
        if starts == NULL:
            raise MemoryError
        with nogil:
            while is_whole(raw + at, left, &parts) and i64(raw + at + 28) == position + at:
                # of an empty body no checksum is compared, as in RocketMQ
                if check_body and parts.body_bytes:
                    if u32(raw + at + 8) != body_crc(raw + at, &parts):
                        break
                if check_record and not crc_holds(raw + at, parts.size):
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
    cdef unsigned char digits[10]
    if not ends_in_crc(at, size):
        return False
    digits_of(crc_of(at, size - CRC_ROOM), digits)
    return memcmp(at + size - 11, digits, 10) == 0


# --- encoding ---

def properties_of(tags, keys, shard, bytes end):
    cdef Text texts[3]
    cdef Py_ssize_t end_bytes = PyBytes_GET_SIZE(end), size = end_bytes
    cdef unsigned char *at
    if (
        not take_text(&texts[0], tags, 6)
        or not take_text(&texts[1], shard, 15)
        or not take_text(&texts[2], keys, 6)
    ):
        return pure_encode.properties_of(tags, keys, shard, end)
    size += texts[0].room + texts[1].room + texts[2].room
    made = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char *> PyBytes_AS_STRING(made)
    at = put_text(at, b"TAGS\x01", 5, &texts[0])
    at = put_text(at, b"__SHARDINGKEY\x01", 14, &texts[1])
    at = put_text(at, b"KEYS\x01", 5, &texts[2])
    memcpy(at, PyBytes_AS_STRING(end), end_bytes)
    return made


cdef class RecordMaker:
    cdef bytes born_host, end
    cdef object twin
    cdef int store_bytes, host_bits
    cdef int64_t month_start_ms
    cdef unsigned char key[74]  # UNIQ_KEY as a property
    cdef Py_ssize_t key_lead, key_bytes

    def __init__(self, bytes born_host, origin, shape):
        self.twin = pure_encode.RecordMaker(born_host, origin, shape)
        self.born_host = born_host
        self.month_start_ms = origin.month_start_ms
        raw = b"UNIQ_KEY\x01" + origin.prefix.encode("ascii")
        if len(raw) > 61:
            raise ValueError("the beginning of a UNIQ_KEY has at most 52 characters")
        self.key_lead = len(raw)
        self.key_bytes = self.key_lead + 13
        memcpy(self.key, PyBytes_AS_STRING(raw), self.key_lead)
        self.key[self.key_bytes - 1] = 2
        self.take_shape(shape)

    def take_shape(self, shape):
        self.twin.take_shape(shape)
        self.store_bytes = shape.store_host_bytes
        self.host_bits = BORN_V6 if len(self.born_host) == 20 else 0
        self.host_bits |= STORE_V6 if self.store_bytes == 20 else 0
        self.end = PROP_CRC_ROOM if shape.prop_crc else b""

    def pack(self, into, runs):
        cdef Py_buffer buffer
        cdef Py_ssize_t at = 0, size
        cdef list starts = []
        cdef bytes name
        cdef tuple draft
        cdef int32_t queue_id
        PyObject_GetBuffer(into, &buffer, PyBUF_CONTIG)
        try:
            for name, queue_id, drafts in runs:
                for draft in drafts:
                    starts.append(at)
                    size = self.put(
                        <unsigned char *> buffer.buf + at, buffer.len - at, name, queue_id, draft
                    )
                    if size < 0:
                        break
                    at += size
                else:
                    continue
                break
            else:
                starts.append(at)
                return starts
        finally:
            PyBuffer_Release(&buffer)
        return self.twin.pack(into, runs)

    cdef Py_ssize_t put(
        self,
        unsigned char *at,
        Py_ssize_t left,
        bytes name,
        int32_t queue_id,
        tuple draft,
    ) except -2:
        """Put a record there; its size, or -1 where it does not fit, or its properties do not."""
        cdef bytes body, properties
        cdef int64_t key, born_ms
        cdef int32_t flag, sys_flag
        cdef Py_ssize_t length, name_bytes = PyBytes_GET_SIZE(name)
        cdef Py_ssize_t born = PyBytes_GET_SIZE(self.born_host), end = PyBytes_GET_SIZE(self.end)
        cdef Py_ssize_t own_bytes, raw_bytes, size
        key, body, properties, flag, sys_flag = draft
        length, own_bytes = PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(properties)
        raw_bytes = own_bytes + self.key_bytes + end
        size = 74 + born + self.store_bytes + length + name_bytes + raw_bytes
        if size > left or raw_bytes > MOST_PROPERTIES:
            return -1
        born_ms = self.month_start_ms + (key >> 16)
        put32(at, <uint32_t> size)
        put32(at + 4, MAGIC_V1 if name_bytes <= 128 else MAGIC_V2)
        put32(
            at + 8,
            crc_of(<Bytes> PyBytes_AS_STRING(body), length) & 0x7FFFFFFF if length else 0,
        )
        put32(at + 12, queue_id)
        put32(at + 16, flag)
        memset(at + 20, 0, 16)
        put32(at + 36, sys_flag | self.host_bits)
        put64(at + 40, born_ms)
        memcpy(at + 48, PyBytes_AS_STRING(self.born_host), born)
        memset(at + 48 + born, 0, 20 + self.store_bytes)
        at += 68 + born + self.store_bytes
        put32(at, <uint32_t> length)
        memcpy(at + 4, PyBytes_AS_STRING(body), length)
        at += 4 + length
        memcpy(at, PyBytes_AS_STRING(name), name_bytes)
        at += name_bytes
        at[0] = raw_bytes >> 8
        at[1] = raw_bytes & 255
        memcpy(at + 2, PyBytes_AS_STRING(properties), own_bytes)
        at += 2 + own_bytes
        put_hex(self.key + self.key_lead, <uint32_t> (key >> 16), 8)
        put_hex(self.key + self.key_lead + 8, <uint32_t> key & 0xFFFF, 4)
        memcpy(at, self.key, self.key_bytes)
        memcpy(at + self.key_bytes, PyBytes_AS_STRING(self.end), end)
        return size


cdef struct Text:
    # a value, and what the property takes with name and separators; nothing where it is empty
    const char *at
    Py_ssize_t size
    Py_ssize_t room


cdef bint take_text(Text *into, object text, Py_ssize_t around):
    """Whether the text may be a property's value as it is."""
    into.room = 0
    if not text:
        return True
    if type(text) is not str:
        return False
    try:
        into.at = PyUnicode_AsUTF8AndSize(text, &into.size)
    except UnicodeEncodeError:
        return False
    into.room = into.size + around
    return memchr(into.at, 1, into.size) == NULL and memchr(into.at, 2, into.size) == NULL


cdef inline unsigned char *put_text(
    unsigned char *at, const char *lead, Py_ssize_t lead_bytes, Text *text
) noexcept:
    if not text.room:
        return at
    memcpy(at, lead, lead_bytes)
    memcpy(at + lead_bytes, text.at, text.size)
    at[text.room - 1] = 2
    return at + text.room


cdef inline void put_hex(unsigned char *at, uint32_t value, int digits) noexcept:
    cdef const char *signs = b"0123456789ABCDEF"
    for place in range(digits - 1, -1, -1):
        at[place] = signs[value & 15]
        value >>= 4


# --- what a consumer is given ---

@cython.final
@cython.no_gc
cdef class Payload:
    # Bytes that messages look at; they stay where they are while a message is left.
    cdef Py_buffer buffer

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_CONTIG_RO)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


@cython.no_gc
cdef class Message:
    cdef Payload payload
    cdef Bytes at
    cdef Py_ssize_t size
    cdef int64_t most
    cdef object taken_body
    cdef object taken_properties

    def __init__(self, record, max_body_bytes=MAX_BODY_BYTES):
        self.payload = Payload(record)
        self.at, self.size = <Bytes> self.payload.buffer.buf, self.payload.buffer.len
        self.most = min(max_body_bytes, 1 << 62)

    def __eq__(self, other):
        cdef Message another
        if not isinstance(other, Message):
            return NotImplemented
        another = other
        return self.size == another.size and memcmp(self.at, another.at, self.size) == 0

    def __hash__(self):
        return hash((self.physical_offset, self.queue_offset))

    def __repr__(self):
        return repr(twin_of(self))

    @property
    def record(self):
        if self.payload is None:
            return memoryview(b"")
        start = self.at - <Bytes> self.payload.buffer.buf
        return memoryview(<object> self.payload.buffer.obj)[start : start + self.size]

    @property
    def queue_id(self):
        return i32(self.at + 12) if self.size >= SMALLEST else unusual(self, "queue_id")

    @property
    def flag(self):
        return i32(self.at + 16) if self.size >= SMALLEST else unusual(self, "flag")

    @property
    def queue_offset(self):
        return i64(self.at + 20) if self.size >= SMALLEST else unusual(self, "queue_offset")

    @property
    def physical_offset(self):
        return i64(self.at + 28) if self.size >= SMALLEST else unusual(self, "physical_offset")

    @property
    def sys_flag(self):
        return i32(self.at + 36) if self.size >= SMALLEST else unusual(self, "sys_flag")

    @property
    def born_timestamp_ms(self):
        return i64(self.at + 40) if self.size >= SMALLEST else unusual(self, "born_timestamp_ms")

    @property
    def store_timestamp_ms(self):
        if self.size < SMALLEST:
            return unusual(self, "store_timestamp_ms")
        return i64(self.at + 56 + (V6_EXTRA if self.at[39] & BORN_V6 else 0))

    @property
    def body(self):
        cdef Parts parts
        if self.taken_body is None:
            if (
                is_exact(self, &parts)
                and not self.at[39] & COMPRESSED
                and u32(self.at + 8) == body_crc(self.at, &parts)
            ):
                self.taken_body = piece_of(self.at + parts.body_at, parts.body_bytes)
            else:
                self.taken_body = unusual(self, "body")
        return self.taken_body

    @property
    def stored_body(self):
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "stored_body")
        return piece_of(self.at + parts.body_at, parts.body_bytes)

    @property
    def _raw_topic(self):
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "_raw_topic")
        return piece_of(self.at + parts.topic_at, parts.topic_bytes)

    @property
    def _raw_properties(self):
        cdef Parts parts
        if not is_exact(self, &parts):
            return unusual(self, "_raw_properties")
        return piece_of(self.at + parts.properties_at, parts.size - parts.properties_at)

    @property
    def born_host(self):
        return unusual(self, "born_host")

    @property
    def store_host(self):
        return unusual(self, "store_host")

    @property
    def reconsume_times(self):
        return unusual(self, "reconsume_times")

    @property
    def message_id(self):
        return unusual(self, "message_id")

    @property
    def compression(self):
        return unusual(self, "compression")

    @property
    def topic(self):
        return self._raw_topic.decode("utf-8", "replace")

    @property
    def properties(self):
        if self.taken_properties is None:
            self.taken_properties = unusual(self, "properties")
        return self.taken_properties

    @property
    def tags(self):
        return pure_message.text_of(self._raw_properties, pure_message.TAGS)

    @property
    def keys(self):
        return pure_message.text_of(self._raw_properties, pure_message.KEYS)

    @property
    def unique_key(self):
        return pure_message.text_of(self._raw_properties, pure_message.UNIQ_KEY)

    @property
    def shard(self):
        return pure_message.text_of(self._raw_properties, pure_message.SHARDING_KEY)


cdef inline bint is_exact(Message message, Parts *parts) noexcept:
    return is_whole(message.at, message.size, parts) and parts.size == message.size


cdef inline bytes piece_of(Bytes at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> at, size)


cdef object twin_of(Message message):
    return pure_message.Message(message.record, message.most)


cdef object unusual(Message message, str field):
    """What the twin makes of a field."""
    return getattr(twin_of(message), field)


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
    cdef Payload whole = Payload(payload)
    cdef Bytes raw = <Bytes> whole.buffer.buf, word = <Bytes> PyBytes_AS_STRING(name)
    cdef Py_ssize_t word_bytes = PyBytes_GET_SIZE(name), at, stop, size
    cdef int64_t offset, low, high, most = min(max_body_bytes, 1 << 62), queue = ANY_QUEUE
    cdef bint named = False
    cdef Parts parts
    cdef Message message
    cdef list made = []
    at, stop = place
    low, high = offsets
    if queue_id is not None:
        queue = queue_id
    if not 0 <= at <= stop <= whole.buffer.len:
        raise ValueError(
            f"a part of {whole.buffer.len} bytes is in them, {at} to {stop} is not"
        )
    if not word_bytes:
        raise ValueError("a name is not empty")
    while stop - at >= SMALLEST:
        size = i32(raw + at)
        if size < SMALLEST or size > stop - at:
            break
        if queue != ANY_QUEUE:
            offset = i64(raw + at + 20)
            if i32(raw + at + 12) != queue or offset < low or offset >= high:
                break
            low = offset + 1
        message = Message.__new__(Message)
        message.payload, message.at, message.size, message.most = whole, raw + at, size, most
        made.append(message)
        if (
            not named
            and is_whole(raw + at, size, &parts)
            and parts.size == size
            and names_queue(raw + at, &parts)
        ):
            named = has_word(
                raw + at + parts.properties_at, size - parts.properties_at, word, word_bytes
            )
        at += size
    return made, at, named


# --- what the reader answers ---

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
        return pure_ranges.log_ranges(raw, max_bytes, segment_bytes)
    ranges = <Range *> PyMem_RawMalloc((len(raw) // ENTRY_BYTES + 1) * sizeof(Range))
    if ranges == NULL:
        raise MemoryError
    try:
        while at < stop:
            offset, length = i64(at), i32(at + 8)
            if length != BLANK_LENGTH:
                if length <= 0 or offset < 0 or (base >= 0 and not base <= offset < end):
                    break
                if base >= 0 and most - size < length:
                    break
                if base < 0:
                    if offset > MOST_OFFSET - segment:
                        return pure_ranges.log_ranges(raw, max_bytes, segment_bytes)
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
    return pure_ranges.Ranges(base, found, size, taken)


cdef int64_t MOST_OFFSET = 1 << 62


def gather(found):
    cdef Payload segment
    cdef int64_t base, size = 0
    cdef Py_ssize_t number
    cdef bytes packed
    cdef Range one
    cdef unsigned char *into
    for _, _, packed in found:
        if PyBytes_GET_SIZE(packed) % sizeof(Range):
            return pure_ranges.gather(found)
        for number in range(PyBytes_GET_SIZE(packed) // <Py_ssize_t> sizeof(Range)):
            memcpy(&one, PyBytes_AS_STRING(packed) + number * sizeof(Range), sizeof(Range))
            if one.start < 0 or one.stop < one.start or one.stop - one.start > MOST_OFFSET - size:
                return pure_ranges.gather(found)
            size += one.stop - one.start
    made = PyBytes_FromStringAndSize(NULL, size)
    into = <unsigned char *> PyBytes_AS_STRING(made)
    for view, base, packed in found:
        segment = Payload(view)
        for number in range(PyBytes_GET_SIZE(packed) // <Py_ssize_t> sizeof(Range)):
            memcpy(&one, PyBytes_AS_STRING(packed) + number * sizeof(Range), sizeof(Range))
            if base < 0 or one.start < base or one.stop - base > segment.buffer.len:
                return pure_ranges.gather(found)
            memcpy(into, <Bytes> segment.buffer.buf + (one.start - base), one.stop - one.start)
            into += one.stop - one.start
    return made
