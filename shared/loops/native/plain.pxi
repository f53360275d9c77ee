# A plain message of RocketMQ's clients, from its frame straight to its record. Part of `compiled`;
# the twin is `pure.plain`, which says what is plain, and to which goes every frame whose header is
# not of the form of header.pxi.

from penstock.shared.names import TOPIC_CHARACTERS

cdef enum:
    MOST_ENTRIES = 32
    MOST_PLAIN_TOPIC = 127
    MOST_HEADER = 32 << 10
    V6_BITS = BORN_V6 | STORE_V6

cdef unsigned char of_plain_topics[256]
memset(of_plain_topics, 0, 256)
for _character in TOPIC_CHARACTERS:
    of_plain_topics[<int> ord(_character)] = 1
# what may begin RETRY_PREFIX or DLQ_PREFIX
of_plain_topics[<int> ord("%")] = 0

cdef bytes _LEAD_310 = forms.PLAIN_LEAD
cdef list _MEANT_NAMES = sorted(name.encode() for name in forms.PLAIN_MEANT)
cdef Span meant[16]
cdef int meant_count = 0
for _name in _MEANT_NAMES:
    if meant_count == 16:
        raise ImportError("it has room for 16 properties that mean something")
    meant[meant_count].at = <Bytes> PyBytes_AS_STRING(_name)
    meant[meant_count].size = PyBytes_GET_SIZE(_name)
    meant_count += 1


cdef inline Py_ssize_t unescape(Span *span, unsigned char *into) noexcept nogil:
    """Properties as they are written into a record; how many bytes. There is room for all."""
    cdef Bytes here = span.at, stop = span.at + span.size
    cdef unsigned char *at = into
    while here != stop:
        if here[0] == 92:
            at[0] = here[5] - 48
            here += 6
        else:
            at[0] = here[0]
            here += 1
        at += 1
    if at == into or at[-1] != 2:
        at[0] = 2
        at += 1
    return at - into


cdef bint are_plain(Bytes at, Py_ssize_t size, Span *key) noexcept nogil:
    """Whether these are entries with names that occur once and mean nothing to a broker; `key` is
    the value of UNIQ_KEY."""
    cdef Span names[MOST_ENTRIES]
    cdef int count = 0, other
    cdef Bytes stop = at + size, between, end
    key.at = NULL
    while at != stop:
        end = <Bytes> memchr(at, 2, stop - at)
        if end == NULL:
            return False
        between = <Bytes> memchr(at, 1, end - at)
        if between == NULL or between == at or between + 1 == end or count == MOST_ENTRIES:
            return False
        if memchr(between + 1, 1, end - between - 1) != NULL:
            return False
        names[count].at = at
        names[count].size = between - at
        for other in range(count):
            if is_word(&names[count], <const char *> names[other].at, names[other].size):
                return False
        for other in range(meant_count):
            if is_word(&names[count], <const char *> meant[other].at, meant[other].size):
                return False
        if is_word(&names[count], b"UNIQ_KEY", 8):
            key.at = between + 1
            key.size = end - between - 1
        count += 1
        at = end + 1
    return key.at != NULL


cdef inline bint is_alnum(Span *span) noexcept nogil:
    cdef Py_ssize_t place
    cdef unsigned char sign
    for place in range(span.size):
        sign = span.at[place]
        if not (48 <= sign <= 57 or 65 <= sign <= 90 or 97 <= sign <= 122):
            return False
    return True


cdef inline bint is_topic(Span *span) noexcept nogil:
    cdef Py_ssize_t place
    if span.at == NULL or not 0 < span.size <= MOST_PLAIN_TOPIC:
        return False
    for place in range(span.size):
        if not of_plain_topics[span.at[place]]:
            return False
    return True


def plain_send(bytes frame, bytes born_host, bytes added, Py_ssize_t most_body):
    cdef Bytes lead = <Bytes> PyBytes_AS_STRING(frame)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(frame), lead_bytes = PyBytes_GET_SIZE(_LEAD_310)
    cdef Py_ssize_t header, body, room, raw, size, more = PyBytes_GET_SIZE(added)
    cdef Sent sent
    cdef Span key
    cdef Span *fields = sent.fields
    cdef int64_t queue_id, ignored, sys_flag, flag, born_ms, reconsumed
    cdef unsigned char text[8192]
    cdef unsigned char *at
    if length < 4 + lead_bytes or memcmp(lead + 4, PyBytes_AS_STRING(_LEAD_310), lead_bytes):
        return None
    if PyBytes_GET_SIZE(born_host) != HOST_V4:
        return None
    header = u32(lead)  # the form of JSON is 0
    body = length - 4 - header
    memset(&sent, 0, sizeof(Sent))
    if (
        not lead_bytes <= header <= MOST_HEADER
        or body < 0
        or body > most_body
        or not take_header(lead + 4 + lead_bytes, lead + 4 + header, &sent)
        or sent.flag & ~2
        or not is_topic(&fields[1])
        or fields[0].at == NULL
        or fields[2].at == NULL
        or not digits(&fields[3], INT_DIGITS, &ignored)
        or not digits(&fields[4], INT_DIGITS, &queue_id)
        or not digits(&fields[5], INT_DIGITS, &sys_flag)
        or not digits(&fields[6], LONG_DIGITS, &born_ms)
        or not digits(&fields[7], INT_DIGITS, &flag)
        or not digits_or_0(&fields[9], &reconsumed)
        or not digits_or_0(&fields[11], &ignored)
        or fields[8].at == NULL
        or fields[8].size >= <Py_ssize_t> sizeof(text)
        or not (fields[10].at == NULL or is_word(&fields[10], b"false", 5))
        or not (fields[12].at == NULL or is_word(&fields[12], b"false", 5))
    ):
        return pure.plain.plain_send(frame, born_host, added, most_body)
    raw = unescape(&fields[8], text)
    sys_flag &= ~(<int64_t> V6_BITS)
    if (
        not are_plain(text, raw, &key)
        or not is_alnum(&key)
        or sys_flag & TRANSACTION
        or raw + more > MOST_PROPERTIES
    ):
        return pure.plain.plain_send(frame, born_host, added, most_body)
    size = SMALLEST + body + fields[1].size + raw + more
    record = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char *> PyBytes_AS_STRING(record)
    put32(at, <uint32_t> size)
    put32(at + AT_MAGIC, MAGIC_V1)
    put32(at + AT_BODY_CRC, crc_of(lead + 4 + header, body) & 0x7FFFFFFF if body else 0)
    put32(at + AT_QUEUE_ID, <uint32_t> queue_id)
    put32(at + AT_FLAG, <uint32_t> flag)
    memset(at + AT_QUEUE_OFFSET, 0, AT_SYS_FLAG - AT_QUEUE_OFFSET)
    put32(at + AT_SYS_FLAG, <uint32_t> sys_flag)
    put64(at + AT_BORN_TIMESTAMP, born_ms)
    memcpy(at + AT_BORN_HOST, PyBytes_AS_STRING(born_host), HOST_V4)
    # the broker stamps time and host
    memset(at + AT_STORE_TIMESTAMP, 0, AT_RECONSUME_TIMES - AT_STORE_TIMESTAMP)
    put32(at + AT_RECONSUME_TIMES, <uint32_t> reconsumed)
    memset(at + AT_PREPARED_OFFSET, 0, 8)
    put32(at + AT_BODY_LENGTH, <uint32_t> body)
    at += AT_BODY
    memcpy(at, lead + 4 + header, body)
    at += body
    at[0] = <unsigned char> fields[1].size
    memcpy(at + 1, fields[1].at, fields[1].size)
    at += 1 + fields[1].size
    at[0] = (raw + more) >> 8
    at[1] = (raw + more) & 255
    at += PROPERTIES_LENGTH
    memcpy(at, text, raw)
    memcpy(at + raw, PyBytes_AS_STRING(added), more)
    return (
        sent.opaque,
        (sent.flag & 2) != 0,
        fields[1].at[: fields[1].size].decode("ascii"),
        queue_id,
        key.at[: key.size].decode("ascii"),
        record,
    )
