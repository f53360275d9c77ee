# cython: language_level=3, freethreading_compatible=False
"""The loops that run once per message, compiled: one module of several files, each the counterpart
of the file of that name in `pure/`. The twins in Python say what each function is for, and decide:
what looks unusual here goes to them, from its beginning, so every refusal is theirs, word for word.

Bytes are read through pointers, and nothing else stops a wrong one. So each length is checked
against the caller's buffer before it is used, whatever the bytes are, and each argument that is
used as an index is checked here even if all callers pass it right.
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

from penstock.shared.loops import forms, pure

INTERFACE = 31

cdef extern from "crc.h" nogil:
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
    """CRC-32 of some bytes, as zlib's. `portable` uses the table for processors without carry-less
    multiplication; tests compare the two."""
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


include "layout.pxi"
include "record.pxi"
include "frame.pxi"
include "keys.pxi"
include "queue_numbers.pxi"
include "queues.pxi"
include "walk.pxi"
include "chains.pxi"
include "numbers.pxi"
include "parcels.pxi"
include "rows.pxi"
include "encode.pxi"
include "sends.pxi"
include "intake.pxi"
include "sending.pxi"
include "message.pxi"
include "answer.pxi"
include "ranges.pxi"
include "serving.pxi"
include "timers.pxi"
include "copies.pxi"
include "batches.pxi"
include "header.pxi"
include "plain.pxi"
include "room.pxi"
include "client_requests.pxi"
include "client_answers.pxi"
include "client_frame.pxi"
include "client_taking.pxi"
include "fields.pxi"
include "columns.pxi"
include "json.pxi"
include "listing.pxi"
include "cells.pxi"
include "lost_pages.pxi"
