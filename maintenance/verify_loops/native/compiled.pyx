# cython: language_level=3, freethreading_compatible=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""The verifier's loops, compiled. The twin, `pure`, says what each is for; where they differ, it
is right.

No line of the broker's loops is shared or included here, or a check would repeat their mistakes.
Bytes are read through pointers, so each length is bounded by the window before it leads anywhere.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from isal.isal_zlib import crc32

from penstock.maintenance.verify_loops.pure import Checked

INTERFACE = 1

ctypedef const unsigned char *Bytes

cdef extern from *:
    """
    /* wanted properties, in the order of the numbers below */
    static const char *const NAMES[4] = {"TAGS\\1", "KEYS\\1", "UNIQ_KEY\\1", "DELAY\\1"};
    static const int NAME_BYTES[4] = {5, 5, 9, 6};
    #define fetch_soon(address) __builtin_prefetch((address), 1)
    static inline uint64_t big(const unsigned char *at, int bytes)
    {
        uint64_t number = 0;
        for (int index = 0; index < bytes; index++)
            number = number << 8 | at[index];
        return number;
    }
    """
    const char *NAMES[4]
    int NAME_BYTES[4]
    void fetch_soon(const void *address) nogil
    uint64_t big(Bytes at, int bytes) nogil

cdef enum:
    BODY = 1
    OWN = 2
    ROW_NUMBERS = 7
    LEAST = 91
    V1 = 0xA7
    V2 = 0xAB
    LONGEST_TOPIC = 255
    OWN_BYTES = 20
    OWN_DIGITS = 10
    ITEM_BYTES = 20
    AHEAD = 16  # items: as long as a slot takes to come from memory


cdef class Numbers:
    # An array of 64-bit numbers that grows: what the loops find.
    cdef int64_t *at
    cdef Py_ssize_t count, room

    def __dealloc__(self):
        PyMem_Free(self.at)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef int64_t *moved
        if self.count + more > self.room:
            self.room = 2 * self.room + more + 1024
            moved = <int64_t *> PyMem_Realloc(self.at, self.room * sizeof(int64_t))
            if moved == NULL:
                raise MemoryError
            self.at = moved
        return 0

    cdef inline void put(self, int64_t number) noexcept:
        self.at[self.count] = number
        self.count += 1

    cdef bytes all(self):
        return PyBytes_FromStringAndSize(<const char *> self.at, self.count * sizeof(int64_t))


include "record.pxi"
include "hashes.pxi"


def check(
    const unsigned char[::1] window,
    int64_t position,
    int64_t limit,
    int checksums,
    const int64_t[::1] levels_ms,
    dict queues not None,
    bint keyed,
):
    cdef Py_ssize_t at = 0, left, without_crc = 0
    cdef bint is_cut = False
    cdef Bytes start = NULL
    cdef Record found
    cdef Span span = Span()
    cdef Numbers rows = Numbers(), items = Numbers()
    cdef int kind
    cdef int64_t place, number, code
    if window.shape[0]:
        start = &window[0]
    while at < limit:
        left = window.shape[0] - at
        is_cut = left < LEAST
        if is_cut or not is_here(start + at, position + at, left, &found, &is_cut):
            break
        if not take_apart(start + at, &found) or not holds(span, start + at, &found, checksums):
            break
        find_wanted(&found)
        without_crc += checksums == OWN and not found.has_own
        place, kind, number = position + at, found.flags & 0xC, -1
        if kind != 0x4 and kind != 0xC:
            number = number_of(queues, &found.topic, start + at + 12)
        code = <int32_t> hashed(0, &found.wanted[TAGS])
        if found.topic.size == 19 and memcmp(found.topic.at, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
            code = due_ms(&found.wanted[DELAY], found.stored_ms, code, levels_ms)
        rows.reserve(ROW_NUMBERS)
        rows.put(number)
        rows.put(<int64_t> big(start + at + 20, 8))
        rows.put(place)
        rows.put(found.size)
        rows.put(code)
        rows.put(key_hash_of(&found.wanted[UNIQUE_KEY]))
        rows.put(found.stored_ms)
        if keyed and kind != 0xC:
            add_items(items, &found, place)
        at += found.size
    return Checked(at, is_cut, without_crc, rows.all(), items.all())


cdef int64_t number_of(dict queues, Value *topic, Bytes queue_id) except -1:
    cdef bytes name = PyBytes_FromStringAndSize(NULL, topic.size + 4)
    cdef PyObject *known
    memcpy(PyBytes_AS_STRING(name), topic.at, topic.size)
    memcpy(PyBytes_AS_STRING(name) + topic.size, queue_id, 4)
    known = PyDict_GetItemWithError(queues, name)
    if known == NULL:
        queues[name] = len(queues)
        return len(queues) - 1
    return <object> known


def chain(const unsigned char[::1] items, int32_t first, int32_t[::1] slots):
    cdef Py_ssize_t count = items.shape[0] // ITEM_BYTES, index
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
    cdef int32_t *previous = <int32_t *> PyBytes_AS_STRING(made)
    cdef int64_t slot
    if slots.shape[0] == 0:
        raise ZeroDivisionError
    for index in range(count):
        if index + AHEAD < count:
            fetch_soon(&slots[slot_of(&items[(index + AHEAD) * ITEM_BYTES], slots.shape[0])])
        slot = slot_of(&items[index * ITEM_BYTES], slots.shape[0])
        previous[index] = slots[slot]
        slots[slot] = first + <int32_t> index
    return made


cdef inline int64_t slot_of(Bytes item, int64_t slots) noexcept nogil:
    """The slot of an item. Its hash may be negative where the file is damaged."""
    cdef int64_t slot = <int32_t> big(item, 4) % slots
    return slot + slots if slot < 0 else slot
