# From a client's bytes to records: what RocketMQ's clients send is taken into a frame. Part of
# `compiled`, and of client_frame.pxi.

cdef enum:
    MOST_COMMON = SMALLEST + MOST_PLAIN_TOPIC


cdef inline Py_ssize_t plain_size(const Plain *plain, Py_ssize_t added) noexcept nogil:
    """The size of a single message's record."""
    return SMALLEST + plain.body_bytes + plain.topic.size + plain.raw + added


cdef unsigned char *put_plain(
    unsigned char *at,
    const Plain *plain,
    Py_ssize_t body_bytes,
    Bytes born_host,
    Bytes added,
    Py_ssize_t more,
) noexcept nogil:
    """Put the record of a message with `body_bytes` of its body, and with `more` bytes `added` to
    its properties; returns where its properties begin. The caller has made room for it."""
    cdef Py_ssize_t raw = plain.raw + more
    put32(at, <uint32_t> (SMALLEST + body_bytes + plain.topic.size + raw))
    put32(at + AT_MAGIC, MAGIC_V1)
    put32(at + AT_BODY_CRC, crc_of(plain.body, body_bytes) & 0x7FFFFFFF if body_bytes else 0)
    put32(at + AT_QUEUE_ID, <uint32_t> plain.queue_id)
    put32(at + AT_FLAG, <uint32_t> plain.flag)
    memset(at + AT_QUEUE_OFFSET, 0, AT_SYS_FLAG - AT_QUEUE_OFFSET)
    put32(at + AT_SYS_FLAG, <uint32_t> plain.sys_flag)
    put64(at + AT_BORN_TIMESTAMP, plain.born_ms)
    memcpy(at + AT_BORN_HOST, born_host, HOST_V4)
    # the broker stamps time and host
    memset(at + AT_STORE_TIMESTAMP, 0, AT_RECONSUME_TIMES - AT_STORE_TIMESTAMP)
    put32(at + AT_RECONSUME_TIMES, <uint32_t> plain.reconsumed)
    memset(at + AT_PREPARED_OFFSET, 0, 8)
    put32(at + AT_BODY_LENGTH, <uint32_t> body_bytes)
    at += AT_BODY
    memcpy(at, plain.body, body_bytes)
    at += body_bytes
    at[0] = <unsigned char> plain.topic.size
    memcpy(at + 1, plain.topic.at, plain.topic.size)
    at += 1 + plain.topic.size
    at[0] = raw >> 8
    at[1] = raw & 255
    at += PROPERTIES_LENGTH
    memcpy(at, plain.text, plain.raw)
    if more:
        memcpy(at + plain.raw, added, more)
    return at


cdef Py_ssize_t take_one(
    ClientFrame into, Bytes at, Py_ssize_t length, by, bytes born_host, dict topics
) except -1:
    """The size of the next frame in bytes; 0 if it is not taken."""
    cdef Plain plain
    cdef Reading reading
    cdef Py_ssize_t size
    cdef bint is_taken
    if length < 4:
        return 0
    size = i32(at)
    # a length that no frame can have is refused by the code that splits frames
    if size < 4 or size > length - 4:
        return 0
    reading = read_plain(at + 4, size, PyBytes_GET_SIZE(into.added), into.most_body, &plain)
    if reading == OTHER:
        return 0
    if reading == UNUSUAL or (plain.is_batch and not plain.body_bytes):
        is_taken = take_unusual(into, at + 4, size, by, born_host, topics)
    elif not has_queue(into, &plain.topic, plain.queue_id, topics):
        return 0
    elif plain.is_batch:
        is_taken = take_batch(into, &plain, at + 4, size, by, born_host, topics)
    else:
        is_taken = take_single(into, &plain, by, born_host)
    return 4 + size if is_taken else 0


cdef bint has_queue(ClientFrame into, Span *name, int64_t queue_id, dict topics) except -1:
    """Whether the topic has the queue. Sets `into.topic` to the topic's name."""
    cdef const char *known = NULL
    cdef Py_ssize_t size = -1
    cdef PyObject *queues
    if into.topic is not None:
        known = PyUnicode_AsUTF8AndSize(into.topic, &size)
    if size != name.size or memcmp(known, name.at, size):
        into.topic = name.at[: name.size].decode("ascii")
    queues = PyDict_GetItem(topics, into.topic)
    return queues != NULL and queue_id < <int64_t> <object> queues


cdef bint take_single(ClientFrame into, Plain *plain, by, bytes born_host) except -1:
    cdef Py_ssize_t added = PyBytes_GET_SIZE(into.added), size = plain_size(plain, added)
    cdef Asked *asked
    cdef unsigned char *start
    cdef unsigned char *properties
    if not into.has_room(size, 1):
        return False
    asked = into.another(by, into.topic, plain.queue_id, False, size, 1)
    start = into.records.at + asked.at
    properties = put_plain(
        start, plain, plain.body_bytes, <Bytes> PyBytes_AS_STRING(born_host),
        <Bytes> PyBytes_AS_STRING(into.added), added,
    )
    asked.key_at = properties - start + (plain.key.at - plain.text)
    asked.key_bytes = plain.key.size
    asked.opaque = plain.opaque
    asked.is_oneway = plain.is_oneway
    (<int32_t *> into.sizes.at)[asked.first] = <int32_t> size
    return True


cdef bint take_batch(
    ClientFrame into, Plain *plain, Bytes at, Py_ssize_t length, by, bytes born_host, dict topics
) except -1:
    cdef unsigned char common[MOST_COMMON]
    cdef Py_ssize_t count = 0, total = -1, common_bytes = SMALLEST + plain.topic.size
    cdef Parts parts
    cdef Asked *asked
    put_plain(common, plain, 0, <Bytes> PyBytes_AS_STRING(born_host), NULL, 0)
    if is_whole(common, common_bytes, &parts):
        total = records_of(plain.body, plain.body_bytes, common_bytes, into.prop_crc, &count)
    if total < 0:
        return take_unusual(into, at, length, by, born_host, topics)
    if not into.has_room(total, count):
        return False
    asked = into.another(by, into.topic, plain.queue_id, True, total, count)
    put_items(
        into.records.at + asked.at, plain.body, plain.body + plain.body_bytes, common,
        common_bytes, &parts, into.prop_crc, (<int32_t *> into.sizes.at) + asked.first,
    )
    asked.opaque = plain.opaque
    asked.is_oneway = plain.is_oneway
    return True


cdef bint take_unusual(
    ClientFrame into, Bytes at, Py_ssize_t length, by, bytes born_host, dict topics
) except -1:
    """Take a frame by way of the twin."""
    cdef bytes records, key
    cdef Asked *asked
    sent = pure.plain.plain_sent(at[:length], born_host, into.rules)
    if sent is None or sent.queue_id >= topics.get(sent.topic, 0):
        return False
    asked = into.put_records(
        by, sent.topic, sent.queue_id, sent.records, list(sent.sizes), sent.is_batch
    )
    if asked == NULL:
        return False
    asked.opaque = sent.opaque
    asked.is_oneway = sent.is_oneway
    if sent.key:
        records, key = sent.records, sent.key.encode()
        asked.key_at = records.rfind(key)
        asked.key_bytes = len(key)
    return True
