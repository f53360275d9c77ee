# Entries on their way from the log to consume queues. Part of `compiled`; the twin is
# `pure.queues`; `forms` draws rows and windows.

cdef enum:
    ROW_BYTES = 12 + ENTRY_BYTES
    WINDOW_WORDS = 3


cdef inline int32_t row_number(Bytes row) noexcept nogil:
    cdef int32_t number
    memcpy(&number, row, 4)
    return number


cdef inline int64_t row_offset(Bytes row) noexcept nogil:
    cdef int64_t queue_offset
    memcpy(&queue_offset, row + 4, 8)
    return queue_offset


cdef inline void put_row(
    unsigned char *row,
    int32_t number,
    int64_t queue_offset,
    int64_t at,
    uint32_t size,
    int64_t code,
) noexcept nogil:
    memcpy(row, &number, 4)
    memcpy(row + 4, &queue_offset, 8)
    put64(row + 12, at)
    put32(row + 20, size)
    put64(row + 24, code)


cdef Py_ssize_t whole_rows(bytes rows) except -1:
    if PyBytes_GET_SIZE(rows) % ROW_BYTES:
        raise ValueError(f"{PyBytes_GET_SIZE(rows)} bytes are no rows")
    return PyBytes_GET_SIZE(rows) // ROW_BYTES


def by_queue(bytes rows, QueueNumbers queues):
    cdef Py_ssize_t count = whole_rows(rows), number = 0, run
    cdef Bytes row = <Bytes> PyBytes_AS_STRING(rows)
    cdef int32_t queue
    cdef int64_t expected
    cdef bytearray entries
    cdef list pieces, names = queues.names
    runs = {}
    while number < count:
        queue, expected, run = row_number(row), row_offset(row), number
        pieces = runs.setdefault(names[queue], [])
        if not pieces or pieces[-1][0] + len(pieces[-1][1]) // ENTRY_BYTES != expected:
            pieces.append((expected, bytearray()))
        entries = pieces[-1][1]
        while number < count and row_number(row) == queue and row_offset(row) == expected:
            number, expected, row = number + 1, expected + 1, row + ROW_BYTES
        add_entries(entries, row - (number - run) * ROW_BYTES, number - run)
    return runs


cdef int add_entries(bytearray entries, Bytes row, Py_ssize_t count) except -1:
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    cdef char *at = PyBytes_AS_STRING(made)
    cdef Py_ssize_t number
    for number in range(count):
        memcpy(at + number * ENTRY_BYTES, row + number * ROW_BYTES + 12, ENTRY_BYTES)
    entries.extend(made)
    return 0


def put_entries(bytes rows, windows, area):
    cdef Py_buffer table, into
    cdef Py_ssize_t count = whole_rows(rows), missed
    cdef Bytes row = <Bytes> PyBytes_AS_STRING(rows)
    cdef bytes left = PyBytes_FromStringAndSize(NULL, count * ROW_BYTES)
    cdef char *rest = PyBytes_AS_STRING(left)
    PyObject_GetBuffer(windows, &table, PyBUF_CONTIG_RO)
    try:
        PyObject_GetBuffer(area, &into, PyBUF_CONTIG)
        try:
            # A store into a mapped file may fault and wait for the disk. Meanwhile the thread that
            # beats must run, or the supervisor takes this process for dead.
            with nogil:
                missed = put_rows(
                    row,
                    count,
                    <const int64_t *> table.buf,
                    table.len // (8 * WINDOW_WORDS),
                    <char *> into.buf,
                    into.len,
                    rest,
                )
        finally:
            PyBuffer_Release(&into)
    finally:
        PyBuffer_Release(&table)
    if missed < 0:
        raise ValueError("a queue has a window's words, and its window lies in the area")
    return left[: missed * ROW_BYTES]


cdef Py_ssize_t put_rows(
    Bytes row,
    Py_ssize_t count,
    const int64_t *windows,
    Py_ssize_t known,
    char *area,
    Py_ssize_t size,
    char *rest,
) noexcept nogil:
    """Returns how many rows have no place, and were copied to `rest`; -1 if the words are wrong.

    Rows and windows come from this process, but a wrong one could store anywhere in memory.
    """
    cdef Py_ssize_t missed = 0, number
    cdef const int64_t *window
    cdef int64_t place
    for number in range(count):
        if not 0 <= row_number(row) < known:
            return -1
        window = windows + row_number(row) * WINDOW_WORDS
        place = row_offset(row) - window[0]
        if 0 <= place < window[1] - window[0]:
            # `place` first: it bounds the product, which could otherwise overflow
            if place >= size or not 0 <= window[2] <= size - (place + 1) * ENTRY_BYTES:
                return -1
            memcpy(area + window[2] + place * ENTRY_BYTES, row + 12, ENTRY_BYTES)
        else:
            memcpy(rest + missed * ROW_BYTES, row, ROW_BYTES)
            missed += 1
        row += ROW_BYTES
    return missed


def move_ends(bytes rows, words, Py_ssize_t step):
    cdef Py_buffer table
    cdef Py_ssize_t count = whole_rows(rows), number, room
    cdef Bytes row = <Bytes> PyBytes_AS_STRING(rows)
    cdef uint64_t *end
    # To readers in other processes the offset promises that the entries before it are there, so
    # the entries' stores must not be reordered after it.
    keep_order()
    PyObject_GetBuffer(words, &table, PyBUF_CONTIG)
    room = table.len // 8
    try:
        for number in range(count):
            if step < 1 or not 0 <= row_number(row) <= (room - 1) // step:
                raise ValueError(f"queue {row_number(row)} has no word")
            end = <uint64_t *> table.buf + row_number(row) * step
            if end[0] <= <uint64_t> row_offset(row):
                end[0] = <uint64_t> row_offset(row) + 1
            row += ROW_BYTES
    finally:
        PyBuffer_Release(&table)
