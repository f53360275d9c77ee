# Pages of mapped files that the disk cannot read. Part of `compiled`; `lost_pages` beside it says
# what these are for, and is what a process has that cannot do it.

cdef extern from "lost_pages.h" nogil:
    int lost_pages_watch(const void *start, size_t size, int is_written)
    void lost_pages_forget(int slot)
    long lost_pages_count(int slot)
    long lost_pages_so_far()
    size_t lost_pages_first(int slot)
    void lost_pages_touch(const unsigned char *at, size_t size)


cdef class PageWatch:
    cdef int slot

    def __cinit__(self, mapped):
        cdef Py_buffer buffer
        self.slot = -1
        PyObject_GetBuffer(mapped, &buffer, PyBUF_CONTIG_RO)
        self.slot = lost_pages_watch(buffer.buf, buffer.len, not buffer.readonly)
        PyBuffer_Release(&buffer)  # what is held could not be unmapped

    @property
    def lost(self):
        return lost_pages_count(self.slot)

    @property
    def first(self):
        return lost_pages_first(self.slot)

    def end(self):
        lost_pages_forget(self.slot)
        self.slot = -1

    def __dealloc__(self):
        lost_pages_forget(self.slot)


def lost_pages():
    return lost_pages_so_far()


def touch_pages(data):
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_CONTIG_RO)
    with nogil:
        lost_pages_touch(<Bytes> buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
