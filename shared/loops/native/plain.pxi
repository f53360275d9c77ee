# A plain message or batch of RocketMQ's clients: what its frame says. Part of `compiled`; the
# twin is `pure.plain`, which defines what is plain, and gets every frame whose header has another
# form than that of header.pxi.

from penstock.shared.names import TOPIC_CHARACTERS

cdef enum:
    MOST_ENTRIES = 32
    MOST_PLAIN_TOPIC = 127
    MOST_HEADER = 32 << 10
    V6_BITS = BORN_V6 | STORE_V6
    LEAD_BYTES = 12  # the beginning of a header, up to the comma after the code

cdef enum Reading:
    OTHER  # it is not plain
    UNUSUAL  # the twin decides whether it is
    PLAIN

cdef struct Plain:
    # What a frame says: pointers into it, and `text`, with a single message's properties.
    Span topic
    Span key
    Bytes body
    Py_ssize_t body_bytes
    Py_ssize_t raw  # size of the properties in `text`
    int64_t opaque
    int64_t queue_id
    int64_t sys_flag
    int64_t flag
    int64_t born_ms
    int64_t reconsumed
    bint is_oneway
    bint is_batch
    unsigned char text[8192]

cdef unsigned char of_plain_topics[256]
memset(of_plain_topics, 0, 256)
for _character in TOPIC_CHARACTERS:
    of_plain_topics[<int> ord(_character)] = 1
# RETRY_PREFIX and DLQ_PREFIX begin with it
of_plain_topics[<int> ord("%")] = 0

if forms.PLAIN_LEADS != {b'{"code":310,': 310, b'{"code":320,': 320}:
    raise ImportError("it takes messages of other codes for plain")
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
    """Put properties as a record has them; returns their size. There is room for all of them."""
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
    """Whether these are entries whose names occur once and mean nothing to a broker. `key` gets
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


cdef Reading read_plain(
    Bytes frame, Py_ssize_t length, Py_ssize_t added, Py_ssize_t most_body, Plain *plain
) noexcept nogil:
    """Read what was sent in a frame, given without its total length. `added` bytes will follow the
    properties of a single message."""
    cdef Py_ssize_t header
    cdef Sent sent
    cdef Span *fields = sent.fields
    cdef Bytes lead = frame + 4
    cdef int64_t ignored
    if length < 4 + LEAD_BYTES or memcmp(lead, b'{"code":3', 9) or memcmp(lead + 10, b"0,", 2):
        return OTHER
    if lead[9] != 49 and lead[9] != 50:
        return OTHER
    plain.is_batch = lead[9] == 50
    header = u32(frame)  # the form of JSON is 0
    plain.body = lead + header
    plain.body_bytes = length - 4 - header
    memset(&sent, 0, sizeof(Sent))
    if (
        not LEAD_BYTES <= header <= MOST_HEADER
        or not 0 <= plain.body_bytes <= most_body
        or not take_header(lead + LEAD_BYTES, lead + header, &sent)
        or sent.flag & ~2
        or not is_topic(&fields[1])
        or fields[0].at == NULL
        or fields[2].at == NULL
        or not digits(&fields[3], INT_DIGITS, &ignored)
        or not digits(&fields[4], INT_DIGITS, &plain.queue_id)
        or not digits(&fields[5], INT_DIGITS, &plain.sys_flag)
        or not digits(&fields[6], LONG_DIGITS, &plain.born_ms)
        or not digits(&fields[7], INT_DIGITS, &plain.flag)
        or fields[8].at == NULL
        or not digits_or_0(&fields[9], &plain.reconsumed)
        or not is_word_or_none(&fields[10], b"false", 5)
        or not digits_or_0(&fields[11], &ignored)
    ):
        return UNUSUAL
    plain.topic = fields[1]
    plain.opaque = sent.opaque
    plain.is_oneway = (sent.flag & 2) != 0
    plain.sys_flag &= ~(<int64_t> V6_BITS)
    if plain.sys_flag & (TRANSACTION | INNER_BATCH):
        return UNUSUAL
    if plain.is_batch:
        plain.flag = plain.raw = 0  # each item has its own
        plain.key.size = 0
        if is_word_or_none(&fields[12], b"false", 5) or is_word(&fields[12], b"true", 4):
            return PLAIN
        return UNUSUAL
    if not is_word_or_none(&fields[12], b"false", 5):
        return UNUSUAL
    if fields[8].size >= <Py_ssize_t> sizeof(plain.text):
        return UNUSUAL
    plain.raw = unescape(&fields[8], plain.text)
    if (
        not are_plain(plain.text, plain.raw, &plain.key)
        or not is_alnum(&plain.key)
        or plain.raw + added > MOST_PROPERTIES
    ):
        return UNUSUAL
    return PLAIN


cdef inline bint is_word_or_none(Span *span, const char *word, Py_ssize_t size) noexcept nogil:
    return span.at == NULL or is_word(span, word, size)
