# Keys on their way into a hash index file: items, and the slots that lead to them. Part of
# `compiled`; the twin is `formats.index_chains`, which explains them.

from libc.stdint cimport INT32_MAX

cdef extern from "arpa/inet.h" nogil:
    uint32_t htonl(uint32_t number)

cdef extern from *:
    # so that the lines of many slots come from memory in parallel, not one after the other
    void prefetch "__builtin_prefetch"(const void *at) noexcept nogil

cdef enum:
    ITEM_BYTES = 20
    ITEM_SLOT_BYTES = 4
    AHEAD = 16


cdef struct Numbered:
    # the newest item of a slot among those of one call; slot 0 and item 0 where the place is free
    uint32_t slot
    int32_t item


cdef class Slots:
    """The slots of a file, and the entries of one call, held and checked."""

    cdef Py_buffer slots, hashes
    cdef int64_t count, known

    def __cinit__(self, slots, hashes, int64_t first, bint written):
        PyObject_GetBuffer(slots, &self.slots, PyBUF_CONTIG if written else PyBUF_CONTIG_RO)
        PyObject_GetBuffer(hashes, &self.hashes, PyBUF_CONTIG_RO)
        self.known = self.slots.len // ITEM_SLOT_BYTES
        self.count = self.hashes.len // 8
        if not self.known or first < 1 or first + self.count > INT32_MAX:
            raise ValueError("a file has slots, and numbers its items from 1 on")

    def __dealloc__(self):
        PyBuffer_Release(&self.slots)
        PyBuffer_Release(&self.hashes)

    cdef inline unsigned char *slot_at(self, int64_t number) noexcept nogil:
        """The slot of an entry. A negative hash would lead to another slot of the file."""
        cdef uint64_t code = (<const uint64_t *> self.hashes.buf)[number]
        return <unsigned char *> self.slots.buf + code % <uint64_t> self.known * ITEM_SLOT_BYTES


def link_entries(slots, hashes, offsets, stored_ms, int64_t first, int64_t begin_ms):
    cdef Slots at = Slots(slots, hashes, first, False)
    cdef Py_buffer places, times
    cdef bytes items = PyBytes_FromStringAndSize(NULL, at.count * ITEM_BYTES)
    cdef int64_t room = 16
    cdef Numbered *newest
    while room < 2 * at.count:
        room *= 2
    newest = <Numbered *> PyMem_RawMalloc(room * sizeof(Numbered))
    if newest == NULL:
        raise MemoryError
    cdef unsigned char *into = <unsigned char *> PyBytes_AS_STRING(items)
    cdef Py_ssize_t empty
    try:
        PyObject_GetBuffer(offsets, &places, PyBUF_CONTIG_RO)
        try:
            PyObject_GetBuffer(stored_ms, &times, PyBUF_CONTIG_RO)
            try:
                if places.len != at.count * 8 or times.len != at.count * 8:
                    raise ValueError("each entry has a hash, an offset and a time")
                # a load from a mapped file may fault and wait for the disk, as in `put_entries`
                with nogil:
                    memset(newest, 0, room * sizeof(Numbered))
                    fill_items(
                        into, at, <const int64_t *> places.buf, <const int64_t *> times.buf,
                        first == 1, begin_ms,
                    )
                    empty = link_items(into, at, first, newest, room - 1)
            finally:
                PyBuffer_Release(&times)
        finally:
            PyBuffer_Release(&places)
    finally:
        PyMem_RawFree(newest)
    return items, empty


cdef void fill_items(
    unsigned char *items, Slots at, const int64_t *places, const int64_t *times, bint is_new,
    int64_t begin_ms,
) noexcept nogil:
    """Fill in the items, except what they follow."""
    cdef int64_t number
    for number in range(at.count):
        put32(items, <uint32_t> (<const int64_t *> at.hashes.buf)[number])
        put64(items + 4, places[number])
        put32(items + 12, seconds_between(begin_ms, times[number]))
        items += ITEM_BYTES
        if is_new and not number:
            begin_ms = times[0]  # item 1 sets it, but does not count its own seconds from it


cdef inline uint32_t seconds_between(int64_t begin_ms, int64_t end_ms) noexcept nogil:
    if begin_ms <= 0 or end_ms <= begin_ms:
        return 0
    return min((<uint64_t> end_ms - <uint64_t> begin_ms) // 1000, <uint64_t> INT32_MAX)


cdef Py_ssize_t link_items(
    unsigned char *items, Slots at, int64_t first, Numbered *newest, uint64_t mask
) noexcept nogil:
    """Let each item name its predecessor in its slot; returns how many found their slot empty.

    The slots are not written yet, so `newest` has the changes that these items make in them.
    """
    cdef Py_ssize_t empty = 0
    cdef int64_t number
    cdef int32_t before
    cdef uint32_t slot
    cdef uint64_t place
    cdef unsigned char *held
    for number in range(at.count):
        if number + AHEAD < at.count:
            prefetch(at.slot_at(number + AHEAD))
        held = at.slot_at(number)
        slot = <uint32_t> ((held - <unsigned char *> at.slots.buf) // ITEM_SLOT_BYTES)
        # spread, as slots of neighbouring hashes are neighbours; half of the places stay free
        place = slot * <uint64_t> 0x9E3779B97F4A7C15 >> 32 & mask
        while newest[place].item and newest[place].slot != slot:
            place = place + 1 & mask
        before = newest[place].item
        if not before:
            before = i32(<Bytes> held)
            # anything but an older item, or this one, could lead out of the file or in a circle
            if not 0 < before <= first + number:
                before = 0
        empty += before == 0
        put32(items + ITEM_BYTES - 4, <uint32_t> before)
        items += ITEM_BYTES
        newest[place].slot = slot
        newest[place].item = <int32_t> (first + number)
    return empty


def move_slots(slots, hashes, int64_t first):
    cdef Slots at = Slots(slots, hashes, first, True)
    cdef int64_t number
    with nogil:
        for number in range(at.count):
            if number + AHEAD < at.count:
                prefetch(at.slot_at(number + AHEAD))
            # one store: a reader of the file sees the old number or the new one
            (<uint32_t *> at.slot_at(number))[0] = htonl(<uint32_t> (first + number))
