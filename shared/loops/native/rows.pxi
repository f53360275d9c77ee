# Messages as the columns of a table. Part of `compiled`; the twins are in `pure.encode`, which
# get whatever is not in order: a piece outside its column, a text that no property can have.

cdef inline bint take_piece(
    Payload ends, Payload data, Py_ssize_t row, Bytes *at, Py_ssize_t *size
) noexcept:
    """Find the piece of a row for which the column has an end; return whether it is inside the
    data. Words need not be aligned."""
    cdef int32_t start, stop
    memcpy(&start, <Bytes> ends.buffer.buf + 4 * row, 4)
    memcpy(&stop, <Bytes> ends.buffer.buf + 4 * row + 4, 4)
    at[0], size[0] = <Bytes> data.buffer.buf + start, stop - start
    return 0 <= start <= stop <= data.buffer.len


@cython.final
cdef class Table:
    # The columns of Rows, kept alive while parcels point into them.
    cdef Payload topics, queues, body_ends, bodies, own_ends, own
    cdef array.array keys
    cdef list names
    cdef Py_ssize_t count
    # whether all columns have the same number of rows
    cdef bint is_whole

    def __init__(self, rows):
        self.names = list(rows.names)
        self.topics, self.queues = Payload(rows.topics), Payload(rows.queues)
        self.body_ends, self.bodies = Payload(rows.body_ends), Payload(rows.bodies)
        self.own_ends, self.own = Payload(rows.own_ends), Payload(rows.own)
        self.keys = rows.keys
        self.count = len(self.keys)
        self.is_whole = (
            self.keys.typecode == "q"
            and self.topics.buffer.len == self.queues.buffer.len == 4 * self.count
            and self.body_ends.buffer.len == self.own_ends.buffer.len == 4 * (self.count + 1)
        )

    cdef bint take(self, Parcel *parcel, Bytes row_at) except -1:
        """Whether the row exists. Notes what its record is made of, except its size."""
        cdef int64_t row
        cdef int32_t topic
        cdef bytes name
        memcpy(&row, row_at, 8)
        if not 0 <= row < self.count:
            return False
        memcpy(&topic, <Bytes> self.topics.buffer.buf + 4 * row, 4)
        if not 0 <= topic < len(self.names):
            return False
        name = self.names[topic]
        parcel.name, parcel.name_bytes = <Bytes> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        memcpy(&parcel.queue_id, <Bytes> self.queues.buffer.buf + 4 * row, 4)
        parcel.key = self.keys.data.as_longlongs[row]
        parcel.flag = parcel.sys_flag = 0
        return take_piece(
            self.body_ends, self.bodies, row, &parcel.body, &parcel.body_bytes
        ) and take_piece(self.own_ends, self.own, row, &parcel.own, &parcel.own_bytes)


cdef struct Pieces:
    # A column: its words and bytes, and the name of the property that its texts become.
    Bytes ends, data, name
    Py_ssize_t name_bytes


cdef enum:
    MOST_COLUMNS = 4


def join_properties(texts_of):
    cdef list held = [(of, Payload(words), Payload(text)) for of, words, text in texts_of]
    cdef Pieces columns[MOST_COLUMNS]
    cdef Py_ssize_t most = len(held), which, rows = -1, size = 0, row, length
    cdef int32_t start, stop, filled = 0
    cdef bint is_good
    cdef bytes name, ends_made, made
    cdef Payload ends, data
    cdef unsigned char *at
    cdef Bytes piece
    if not 0 < most <= MOST_COLUMNS:
        return pure.encode.join_properties(texts_of)
    for which in range(most):
        name, ends, data = held[which]
        if ends.buffer.len % 4 or not ends.buffer.len or which and ends.buffer.len // 4 - 1 != rows:
            return pure.encode.join_properties(texts_of)
        rows = ends.buffer.len // 4 - 1
        columns[which].ends, columns[which].data = <Bytes> ends.buffer.buf, <Bytes> data.buffer.buf
        columns[which].name = <Bytes> PyBytes_AS_STRING(name)
        columns[which].name_bytes = PyBytes_GET_SIZE(name)
        if not are_pieces(columns[which].ends, rows, data.buffer.len):
            return pure.encode.join_properties(texts_of)
        size += data.buffer.len + rows * (PyBytes_GET_SIZE(name) + 2)
    if size > MOST_PIECES_BYTES:
        return pure.encode.join_properties(texts_of)
    ends_made = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
    made = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char *> PyBytes_AS_STRING(made)
    memcpy(PyBytes_AS_STRING(ends_made), &filled, 4)
    for row in range(rows):
        for which in range(most):
            memcpy(&start, columns[which].ends + 4 * row, 4)
            memcpy(&stop, columns[which].ends + 4 * row + 4, 4)
            piece, length = columns[which].data + start, stop - start
            if columns[which].name_bytes == 0:
                memcpy(at + filled, piece, length)
                filled += <int32_t> length
            elif length:
                is_good = memchr(piece, 1, length) == NULL and memchr(piece, 2, length) == NULL
                if not is_good:
                    return row
                memcpy(at + filled, columns[which].name, columns[which].name_bytes)
                filled += <int32_t> columns[which].name_bytes
                at[filled] = BETWEEN
                memcpy(at + filled + 1, piece, length)
                filled += <int32_t> length + 2
                at[filled - 1] = AFTER
        memcpy(PyBytes_AS_STRING(ends_made) + 4 * (row + 1), &filled, 4)
    return ends_made, made[:filled]


cdef bint are_pieces(Bytes ends, Py_ssize_t count, Py_ssize_t length) noexcept:
    """Whether the words are inside and do not decrease."""
    cdef int32_t start, stop
    cdef Py_ssize_t number
    memcpy(&start, ends, 4)
    if start < 0:
        return False
    for number in range(count):
        memcpy(&stop, ends + 4 * (number + 1), 4)
        if stop < start:
            return False
        start = stop
    return start <= length
