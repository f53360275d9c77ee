# The properties that queues and index need, Java's hashes of them, and the keys of a walk. Part
# of `compiled`; the twin is in `pure.walk`. It handles one record at a time, and not the log.

from penstock.shared.formats.queue_entry import tags_code
from penstock.shared.formats.properties import find_property
from penstock.shared.formats.java_hash import string_hash


cdef struct Value:
    # a property's value; `is_empty` if the last property with the name has none
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
    """Note a property if its name is that in `lead`; a later one replaces it."""
    if size >= lead_bytes and memcmp(at, lead, lead_bytes) == 0:
        value.at = at + lead_bytes
        value.size = size - lead_bytes
        value.is_empty = value.size == 0


cdef inline void find_properties(Bytes at, Py_ssize_t left, Properties *found) noexcept nogil:
    """One pass for all three names. First letters differ, so most properties cost one compare."""
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
    # the OR of all bytes: one test after the loop, and none in it, recognises ASCII
    cdef unsigned char any_bits = 0
    cdef Py_ssize_t place
    for place in range(size):
        value = 31 * value + at[place]
        any_bits |= at[place]
    code[0] = value
    return any_bits < 128


cdef bytes text_of(Value *value, Bytes properties, Py_ssize_t size, str name):
    """A value as bytes; if the last with this name is empty, an earlier one."""
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
    """What goes into the index, three words per key."""

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
        # imported here: numpy takes longer to import than a start may
        import numpy as np

        from penstock.shared.formats.index_chains import Entries

        raw = PyBytes_FromStringAndSize(<const char *> self.words, self.count * 24)
        words = np.frombuffer(raw, np.int64).reshape(-1, 3)
        return Entries(*(np.ascontiguousarray(words[:, column]) for column in range(3)))
