# The header of a plain message of RocketMQ's clients, in the one form that Java's client writes: no
# spaces, no byte beyond ASCII, and only two escapes. Part of `compiled`; a header of another form
# goes to the twin (see plain.pxi).
#
# A cursor moves through the header and never past its end: each step compares before it reads.

cdef enum:
    # digits that fit into 31 and 63 bits in any case
    INT_DIGITS = 9
    LONG_DIGITS = 18

cdef struct Span:
    Bytes at
    Py_ssize_t size

cdef struct Sent:
    # The fields of a send by their letters, `a` at index 0; and the parts of the header that
    # matter.
    Span fields[26]
    int64_t opaque
    int64_t flag

cdef inline bint is_word(Span *span, const char *word, Py_ssize_t size) noexcept nogil:
    return span.size == size and memcmp(span.at, word, size) == 0


cdef inline bint take_byte(Bytes *at, Bytes stop, unsigned char wanted) noexcept nogil:
    if at[0] == stop or at[0][0] != wanted:
        return False
    at[0] += 1
    return True


cdef inline bint take_string(Bytes *at, Bytes stop, Span *into) noexcept nogil:
    """A JSON string: its bytes between the quotes. `into` keeps the escapes."""
    cdef Bytes here
    if not take_byte(at, stop, 34):
        return False
    here = at[0]
    into.at = here
    while here != stop and here[0] != 34:
        if here[0] < 32 or here[0] > 126:
            return False
        if here[0] == 92:
            # \u0001 or \u0002, which separate properties
            if stop - here < 6 or memcmp(here, b"\\u000", 5) or here[5] < 49 or here[5] > 50:
                return False
            here += 5
        here += 1
    if here == stop:
        return False
    into.size = here - into.at
    at[0] = here + 1
    return True


cdef inline bint take_number(Bytes *at, Bytes stop, int64_t *into) noexcept nogil:
    """A JSON integer of 32 bits."""
    cdef Bytes here = at[0], first
    cdef bint negative = False
    cdef int64_t value = 0
    if here != stop and here[0] == 45:
        negative = True
        here += 1
    first = here
    while here != stop and 48 <= here[0] <= 57:
        if here - first == 10:
            return False
        value = value * 10 + here[0] - 48
        here += 1
    if here == first or (first[0] == 48 and here - first > 1):
        return False
    into[0] = -value if negative else value
    at[0] = here
    return -(<int64_t> 1 << 31) <= into[0] < <int64_t> 1 << 31


cdef bint take_fields(Bytes *at, Bytes stop, Sent *sent) noexcept nogil:
    """The object of fields, whose values are all strings."""
    cdef Span name, value
    cdef int letter
    if not take_byte(at, stop, 123):
        return False
    while True:
        if (
            not take_string(at, stop, &name)
            or not take_byte(at, stop, 58)
            or not take_string(at, stop, &value)
        ):
            return False
        if memchr(name.at, 92, name.size) != NULL:
            return False
        if name.size == 1 and 97 <= name.at[0] <= 122:
            letter = name.at[0] - 97
            if sent.fields[letter].at != NULL:
                return False  # it comes twice
            # only properties may have escapes
            if name.at[0] != 105 and memchr(value.at, 92, value.size) != NULL:
                return False
            sent.fields[letter] = value
        if take_byte(at, stop, 125):
            return True
        if not take_byte(at, stop, 44):
            return False


cdef bint take_header(Bytes at, Bytes stop, Sent *sent) noexcept nogil:
    """Whether everything after the code is of this form."""
    cdef Span name, text
    cdef int64_t number
    cdef int seen = 0, bit
    while True:
        if not take_string(&at, stop, &name) or not take_byte(&at, stop, 58):
            return False
        if is_word(&name, b"extFields", 9):
            bit = 1
            if not take_fields(&at, stop, sent):
                return False
        elif is_word(&name, b"flag", 4):
            bit = 2
            if not take_number(&at, stop, &sent.flag):
                return False
        elif is_word(&name, b"opaque", 6):
            bit = 4
            if not take_number(&at, stop, &sent.opaque):
                return False
        elif is_word(&name, b"version", 7):
            bit = 8
            if not take_number(&at, stop, &number):
                return False
        elif is_word(&name, b"language", 8):
            bit = 16
            if not take_string(&at, stop, &text):
                return False
        elif is_word(&name, b"serializeTypeCurrentRPC", 23):
            bit = 32
            if not take_string(&at, stop, &text):
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if take_byte(&at, stop, 125):
            return at == stop and seen & 1
        if not take_byte(&at, stop, 44):
            return False


cdef inline bint digits(Span *span, Py_ssize_t most, int64_t *into) noexcept nogil:
    cdef Py_ssize_t place
    if span.at == NULL or not 0 < span.size <= most:
        return False
    into[0] = 0
    for place in range(span.size):
        if not 48 <= span.at[place] <= 57:
            return False
        into[0] = into[0] * 10 + span.at[place] - 48
    return True


cdef inline bint digits_or_0(Span *span, int64_t *into) noexcept nogil:
    into[0] = 0
    return span.at == NULL or digits(span, INT_DIGITS, into)
