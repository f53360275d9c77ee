# The answers to RocketMQ's clients whose messages are stored. Part of `compiled`; the twin is
# `pure.client_frame`. The caller has made room for what is written here: see `answer_bytes`.

cdef enum:
    WORDS = 6
    ID_DIGITS = 16
    MOST_DECIMAL = 20  # and a sign

cdef struct Words:
    # the fixed parts of an answer, between which numbers and names go; and how its ids begin
    Span parts[WORDS]
    Span lead
    Py_ssize_t size


cdef int take_words(Words *into, tuple words, bytes lead) except -1:
    """Point to the words, which the caller keeps alive."""
    cdef bytes word
    cdef int number
    if len(words) != WORDS:
        raise ValueError("an answer has six words")
    into.size = 0
    for number in range(WORDS):
        word = words[number]
        into.parts[number].at = <Bytes> PyBytes_AS_STRING(word)
        into.parts[number].size = PyBytes_GET_SIZE(word)
        into.size += into.parts[number].size
    into.lead.at = <Bytes> PyBytes_AS_STRING(lead)
    into.lead.size = PyBytes_GET_SIZE(lead)
    return 0


cdef struct Cursor:
    # Where a frame's next record is, and the pieces that were not reached yet: three words each.
    const int64_t *pieces
    Py_ssize_t left
    int64_t number
    int64_t offset
    int64_t position


cdef inline Py_ssize_t ids_bytes(const Words *words, Py_ssize_t count) noexcept nogil:
    return count * (words.lead.size + ID_DIGITS + 1)


cdef inline Py_ssize_t answer_bytes(
    const Words *words, Py_ssize_t count, Py_ssize_t key_bytes
) noexcept nogil:
    """The largest size of an answer."""
    return 8 + words.size + ids_bytes(words, count) + 3 * (MOST_DECIMAL + 1) + key_bytes


cdef unsigned char *put_ids(
    unsigned char *at,
    const Words *words,
    const int32_t *sizes,
    Py_ssize_t count,
    Cursor *cursor,
    int64_t *offset,
) noexcept nogil:
    """Put the ids of the next records, with commas; returns the end. `offset` gets the first's."""
    cdef Py_ssize_t number
    for number in range(count):
        # records that were sent again may lie in several places
        if cursor.left and cursor.pieces[0] == cursor.number:
            cursor.offset, cursor.position = cursor.pieces[1], cursor.pieces[2]
            cursor.pieces += 3
            cursor.left -= 1
        if number:
            at[0] = 44
            at += 1
        else:
            offset[0] = cursor.offset
        memcpy(at, words.lead.at, words.lead.size)
        at += words.lead.size
        put_hex(at, <uint32_t> (<uint64_t> cursor.position >> 32), 8)
        put_hex(at + 8, <uint32_t> cursor.position, 8)
        at += ID_DIGITS
        cursor.number += 1
        cursor.offset += 1
        cursor.position += sizes[number]
    return at


cdef inline unsigned char *put_word(unsigned char *at, const Span *word) noexcept nogil:
    memcpy(at, word.at, word.size)
    return at + word.size


cdef inline unsigned char *put_decimal(unsigned char *at, int64_t value) noexcept nogil:
    cdef unsigned char signs[MOST_DECIMAL]
    cdef int count = 0
    cdef uint64_t left = <uint64_t> value
    if value < 0:
        at[0] = 45
        at += 1
        left = 0 - left
    while True:
        signs[count] = 48 + left % 10
        count += 1
        left //= 10
        if not left:
            break
    while count:
        count -= 1
        at[0] = signs[count]
        at += 1
    return at


cdef unsigned char *put_answer(
    unsigned char *start,
    const Words *words,
    const int32_t *sizes,
    Py_ssize_t count,
    Cursor *cursor,
    int64_t opaque,
    int64_t queue_id,
    const Span *key,
) noexcept nogil:
    """Put the frame of an answer; returns the end."""
    cdef int64_t offset = 0
    cdef unsigned char *at = put_word(start + 8, &words.parts[0])
    at = put_decimal(at, opaque)
    at = put_word(at, &words.parts[1])
    at = put_ids(at, words, sizes, count, cursor, &offset)
    at = put_word(at, &words.parts[2])
    at = put_decimal(at, queue_id)
    at = put_word(at, &words.parts[3])
    at = put_decimal(at, offset)
    if key.size:
        at = put_word(at, &words.parts[4])
        at = put_word(at, key)
    at = put_word(at, &words.parts[5])
    put32(start, <uint32_t> (at - start - 4))
    put32(start + 4, <uint32_t> (at - start - 8))
    return at


cdef list put_answers(Requests of, Room *rooms, tuple words, bytes lead, places):
    """For requests that were taken, put the answers, into a room for each recipient. For those that
    were put, return the first queue offset and all ids."""
    cdef Words said
    cdef Cursor cursor
    cdef Py_ssize_t number
    cdef array.array pieces = array.clone(NUMBERS, 0, False)
    cdef list others = []
    take_words(&said, words, lead)
    memset(&cursor, 0, sizeof(Cursor))
    for place in places:
        for word in place:
            put_number(pieces, word)
    cursor.pieces = <const int64_t *> pieces.data.as_longlongs
    cursor.left = len(pieces) // 3
    for number in range(of.requests):
        put_one(of, of.all_asked() + number, rooms, &said, &cursor, others)
    return others


cdef int put_one(
    Requests of, const Asked *asked, Room *rooms, const Words *words, Cursor *cursor, list others
) except -1:
    cdef const int32_t *sizes = (<int32_t *> of.sizes.at) + asked.first
    cdef Room *room = rooms + asked.by
    cdef int64_t offset = 0
    cdef unsigned char *start
    cdef unsigned char *end
    cdef Span key
    make_room(room, answer_bytes(words, asked.count, asked.key_bytes))
    start = room.at + room.used
    if asked.is_put or asked.is_oneway:
        # what is written here is only read once, not kept
        end = put_ids(start, words, sizes, asked.count, cursor, &offset)
        if asked.is_put:
            ids = start[: end - start].decode("ascii")
            others.append((of.whom[asked.by], offset, ids))
        return 0
    key.at = <Bytes> PyBytes_AS_STRING(of.raw) + asked.at + asked.key_at
    key.size = asked.key_bytes
    end = put_answer(start, words, sizes, asked.count, cursor, asked.opaque, asked.queue_id, &key)
    room.used = end - room.at
    return 0
