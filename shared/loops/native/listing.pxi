# Records as rows of a listing: lines of JSON, and cells of a table. Part of `compiled`.
# `cli.printing.records` decides which fields a row has, and their form; the caller makes the rows
# of unusual records by that, and the twins in `pure.columns` leave all rows to it.

from hashlib import sha256

from penstock.shared.formats.record import host_text

cdef enum:
    # names, numbers, hosts, ids and checksum of a line, with room to spare
    LINE_BYTES = 1200
    # reconsumeTimes, preparedTransactionOffset and bodyLength, up to the body
    TAIL = AT_BODY - AT_RECONSUME_TIMES

cdef const char *UPPER = b"0123456789ABCDEF"


cdef struct Entries:
    # entries of a properties string, and room for them: its length is a signed 16-bit number
    Cut keys
    Cut values
    Py_ssize_t count
    int32_t key_ends[MOST_OF_ONE]
    int32_t value_ends[MOST_OF_ONE]
    unsigned char key_bytes[MOST_PROPERTIES]
    unsigned char value_bytes[MOST_PROPERTIES]


cdef bint take_entries(Bytes at, Py_ssize_t size, Entries *found):
    """Whether the properties are usual: all UTF-8, no key twice, and not too many."""
    cdef bint is_ascii
    found.keys.bytes, found.keys.ends = &found.key_bytes[0], &found.key_ends[0]
    found.values.bytes, found.values.ends = &found.value_bytes[0], &found.value_ends[0]
    found.keys.filled = found.values.filled = 0
    found.count = cut_record(at, size, &found.keys, &found.values, 0, &is_ascii)
    return found.count >= 0 and (is_ascii or is_utf8(at, size))


cdef inline void put_piece(Room *room, Cut *pieces, Py_ssize_t number) noexcept nogil:
    cdef Py_ssize_t start = pieces.ends[number - 1] if number else 0
    put_string(room, pieces.bytes + start, pieces.ends[number] - start)


cdef void put_value(
    Room *room, const char *name, Entries *entries, const char *key, Py_ssize_t key_bytes
) noexcept nogil:
    """Append the value of a key, or null."""
    cdef Py_ssize_t number, start = 0
    put_name(room, name)
    for number in range(entries.count):
        if entries.key_ends[number] - start == key_bytes:
            if memcmp(entries.key_bytes + start, key, key_bytes) == 0:
                put_piece(room, &entries.values, number)
                return
        start = entries.key_ends[number]
    put_name(room, b"null")


cdef int put_host(Room *room, const char *name, dict hosts, Bytes at, Py_ssize_t size) except -1:
    cdef bytes raw = PyBytes_FromStringAndSize(<const char *> at, size)
    cdef bytes text = hosts.get(raw)
    if text is None:
        text = hosts[raw] = host_text(raw).encode()
    put_name(room, name)
    put_string(room, <Bytes> PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return 0


cdef bint put_line(
    Room *room, Bytes at, Parts *parts, Entries *entries, dict hosts, bint with_body
) except -1:
    """Whether the record is usual; if so, appends its line."""
    cdef Py_ssize_t others = parts.size - parts.body_at - parts.body_bytes
    if at[AT_PHYSICAL_OFFSET] > 127 or with_body and at[AT_SYS_FLAG_LOW] & COMPRESSED:
        return False
    if not is_utf8(at + parts.topic_at, parts.topic_bytes):
        return False
    if not take_entries(at + parts.properties_at, parts.size - parts.properties_at, entries):
        return False
    # tags and keys occur twice in it; a body becomes text, and four bytes for each three
    make_room(room, LINE_BYTES + 2 * MOST_ESCAPED * others)
    put_head(room, at, parts, hosts)
    put_value(room, b',"tags":', entries, b"TAGS", 4)
    put_value(room, b',"keys":', entries, b"KEYS", 4)
    put_value(room, b',"unique_key":', entries, b"UNIQ_KEY", 8)
    put_tail(room, at, parts, entries)
    if with_body:
        make_room(room, LINE_BYTES + (MOST_ESCAPED + 2) * parts.body_bytes)
        put_body(room, at + parts.body_at, parts.body_bytes)
    put_name(room, b"}\n")
    return True


cdef int put_head(Room *room, Bytes at, Parts *parts, dict hosts) except -1:
    """Append where the record is, and where it came from."""
    cdef Py_ssize_t born_bytes = HOST_V6 if at[AT_SYS_FLAG_LOW] & BORN_V6 else HOST_V4
    put_name(room, b'{"topic":')
    put_string(room, at + parts.topic_at, parts.topic_bytes)
    put_integer(room, b',"queue_id":', i32(at + AT_QUEUE_ID))
    put_integer(room, b',"queue_offset":', i64(at + AT_QUEUE_OFFSET))
    put_integer(room, b',"physical_offset":', i64(at + AT_PHYSICAL_OFFSET))
    put_integer(room, b',"size":', parts.size)
    put_integer(room, b',"store_timestamp_ms":', stored_ms_of(at))
    put_integer(room, b',"born_timestamp_ms":', i64(at + AT_BORN_TIMESTAMP))
    put_host(room, b',"born_host":', hosts, at + AT_BORN_HOST, born_bytes)
    put_host(room, b',"store_host":', hosts, store_host_at(at), store_host_bytes(at))
    put_integer(room, b',"flag":', i32(at + AT_FLAG))
    put_integer(room, b',"sys_flag":', i32(at + AT_SYS_FLAG))
    put_integer(room, b',"reconsume_times":', i32(at + parts.body_at - TAIL))
    return 0


cdef int put_tail(Room *room, Bytes at, Parts *parts, Entries *entries) except -1:
    cdef Bytes body = at + parts.body_at
    cdef bytes digest = sha256(
        PyBytes_FromStringAndSize(<const char *> body, parts.body_bytes)
    ).digest()
    cdef Py_ssize_t number
    put_name(room, b',"message_id":"')
    put_pairs(room, store_host_at(at), store_host_bytes(at), UPPER)
    put_pairs(room, at + AT_PHYSICAL_OFFSET, 8, UPPER)
    put_integer(room, b'","prepared_transaction_offset":', i64(body - TAIL + 4))
    put_integer(room, b',"body_size":', parts.body_bytes)
    put_name(room, b',"body_sha256":"')
    put_pairs(room, <Bytes> PyBytes_AS_STRING(digest), PyBytes_GET_SIZE(digest), LOWER)
    put_name(room, b'","properties":{')
    for number in range(entries.count):
        put_name(room, b"," if number else b"")
        put_piece(room, &entries.keys, number)
        put_name(room, b":")
        put_piece(room, &entries.values, number)
    put_name(room, b"}")
    return 0


cdef inline Py_ssize_t store_host_bytes(Bytes at) noexcept nogil:
    return HOST_V6 if at[AT_SYS_FLAG_LOW] & STORE_V6 else HOST_V4


cdef inline Bytes store_host_at(Bytes at) noexcept nogil:
    return at + AT_STORE_HOST + (V6_EXTRA if at[AT_SYS_FLAG_LOW] & BORN_V6 else 0)


cdef int put_body(Room *room, Bytes at, Py_ssize_t size) except -1:
    put_name(room, b',"body":')
    if is_utf8(at, size):
        put_string(room, at, size)
    else:
        put_name(room, b"null")
    put_name(room, b',"body_base64":')
    put_base64(room, at, size)
    return 0


def json_lines(records, Py_ssize_t start, bint with_body, bint ascii_only):
    cdef Payload held = Payload(records)
    cdef Bytes raw = <Bytes> held.buffer.buf
    cdef Py_ssize_t at = start, before
    cdef Entries *entries = NULL
    cdef dict hosts = {}
    cdef Parts parts
    cdef Room room
    memset(&room, 0, sizeof(Room))
    try:
        entries = <Entries *> PyMem_RawMalloc(sizeof(Entries))
        if entries == NULL:
            raise MemoryError
        while 0 <= at <= held.buffer.len and is_whole(raw + at, held.buffer.len - at, &parts):
            before = room.used
            if not put_line(&room, raw + at, &parts, entries, hosts, with_body):
                break
            if ascii_only and not is_ascii(room.at + before, room.used - before):
                room.used = before
                break
            at += parts.size
        return PyBytes_FromStringAndSize(<const char *> room.at, room.used), at
    finally:
        PyMem_RawFree(entries)
        free_room(&room)
