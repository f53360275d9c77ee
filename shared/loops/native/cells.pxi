# Records as cells of a table. Part of `compiled`; works like the lines of `native/listing.pxi`.

def cells(records, Py_ssize_t start, bint with_body, shown_time):
    cdef Payload held = Payload(records)
    cdef Bytes raw = <Bytes> held.buffer.buf, one
    cdef Py_ssize_t at = start
    cdef int64_t shown_ms = 0, stored_ms
    cdef object shown = shown_time(0)
    cdef list rows = [], row
    cdef Properties found
    cdef Parts parts
    while 0 <= at <= held.buffer.len and is_whole(raw + at, held.buffer.len - at, &parts):
        one = raw + at
        find_properties(one + parts.properties_at, parts.size - parts.properties_at, &found)
        # if the last value of a name is empty an earlier one counts: unusual
        if found.tags.is_empty or found.keys.is_empty:
            break
        if with_body and one[AT_SYS_FLAG_LOW] & COMPRESSED:
            break
        stored_ms = stored_ms_of(one)
        if stored_ms != shown_ms:
            shown, shown_ms = shown_time(stored_ms), stored_ms
        row = [
            text_at(one + parts.topic_at, parts.topic_bytes),
            i32(one + AT_QUEUE_ID),
            i64(one + AT_QUEUE_OFFSET),
            i64(one + AT_PHYSICAL_OFFSET),
            parts.size,
            shown,
            text_at(found.tags.at, found.tags.size) if found.tags.size else None,
            text_at(found.keys.at, found.keys.size) if found.keys.size else None,
        ]
        if with_body:
            row.append(body_cell(one + parts.body_at, parts.body_bytes))
        rows.append(row)
        at += parts.size
    return rows, at


cdef str text_at(Bytes at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> at, size).decode("utf-8", "replace")


cdef str body_cell(Bytes at, Py_ssize_t size):
    try:
        return PyBytes_FromStringAndSize(<const char *> at, size).decode()
    except UnicodeDecodeError:
        return f"{size} bytes"
