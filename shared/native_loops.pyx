# cython: language_level=3, freethreading_compatible=False
"""The loops that run once per message, compiled: one module of several files, each the like of its
twin in Python, `pure_frame` of `native_frame` and so on. The twins say what each function is for,
and decide: what looks unusual here goes to them, so every refusal is theirs, word for word.

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
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

INTERFACE = 7

cdef extern from "native_crc.h" nogil:
    void crc_begin(int portable)
    uint32_t crc_of(const unsigned char *at, size_t length)
    uint32_t crc_on(uint32_t before, const unsigned char *at, size_t length)
    void keep_order()

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

ctypedef const unsigned char *Bytes

cdef enum:
    ENTRY_BYTES = 20

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


include "native_record.pxi"
include "native_frame.pxi"
include "native_keys.pxi"
include "native_queue_numbers.pxi"
include "native_queues.pxi"
include "native_walk.pxi"
include "native_numbers.pxi"
include "native_encode.pxi"
include "native_sends.pxi"
include "native_intake.pxi"
include "native_message.pxi"
include "native_answer.pxi"
include "native_ranges.pxi"
include "native_parts.pxi"
