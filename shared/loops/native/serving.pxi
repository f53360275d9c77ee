# What an actor that serves clients does when they send no whole requests. Part of `compiled`; the
# twin is `pure.serving`, which also says where ZeroMQ's functions are: this module is not linked to
# it. A sleep is without the interpreter's lock: the pulse that beats meanwhile has it.

from cpython.exc cimport PyErr_SetFromErrno
from libc.stdlib cimport strtoll


cdef extern from "serving.h" nogil:
    int wait_for(int source, int wait_ms)
    long read_at_start(int handle, char *into, long size)

ctypedef int (*ReceiveFunction)(void *, void *, size_t, int) noexcept nogil
ctypedef int (*GetFunction)(void *, int, void *, size_t *) noexcept nogil

cdef enum:
    ZMQ_RCVMORE = 13
    ZMQ_DONTWAIT = 1
    STATM_BYTES = 256


def drop_parts(socket, int most):
    cdef size_t receive, get, size, underlying = socket.underlying
    cdef int more = 1, count = 0
    receive, get = pure.serving.addresses()
    if not receive or not get:
        return pure.serving.drop_parts(socket, most)
    with nogil:
        while count < most:
            size = sizeof(more)
            if (<GetFunction> get)(<void *> underlying, ZMQ_RCVMORE, &more, &size) or not more:
                break
            # into no bytes: ZeroMQ drops what does not fit, and nothing is copied
            if (<ReceiveFunction> receive)(<void *> underlying, NULL, 0, ZMQ_DONTWAIT) < 0:
                break
            count += 1
    return count


def sleep_small(int source, int statm, int64_t most_pages, int timeout_ms, int look_ms):
    cdef int ready = 0
    cdef int64_t pages = 0
    if look_ms <= 0:
        raise ValueError(f"look_ms is {look_ms}: at least 1")
    with nogil:
        while timeout_ms > 0 and ready == 0 and pages <= most_pages:
            ready = wait_for(source, min(timeout_ms, look_ms))
            timeout_ms -= look_ms
            if ready == 0:
                pages = own_pages(statm)
                if pages < 0:
                    ready = -1
    if ready < 0:
        PyErr_SetFromErrno(OSError)


cdef int64_t own_pages(int statm) noexcept nogil:
    """-1 where it cannot be read. A file that ends early has zeros for what is missing."""
    cdef char text[STATM_BYTES]
    cdef char *at = text
    cdef int64_t resident
    cdef long size = read_at_start(statm, text, STATM_BYTES - 1)
    if size < 0:
        return -1
    text[size] = 0
    strtoll(at, &at, 10)
    resident = strtoll(at, &at, 10)
    return max(0, resident - strtoll(at, &at, 10))
