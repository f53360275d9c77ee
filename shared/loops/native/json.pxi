# JSON values as msgspec writes them, appended to a room that is large enough. Part of
# `compiled`.

from libc.string cimport strlen

cdef enum:
    # the longest escape of one byte: \u001f
    MOST_ESCAPED = 6

cdef const char *LOWER = b"0123456789abcdef"

# what follows the backslash: 0 for a byte without an escape, u for one without a short form
cdef unsigned char escapes[256]
memset(escapes, 0, 256)
memset(escapes, c"u", 32)
for _byte, _sign in zip(b'\b\t\n\f\r"\\', b'btnfr"\\'):
    escapes[<int> _byte] = _sign


cdef inline void put_name(Room *room, const char *name) noexcept nogil:
    """Append text that is JSON already."""
    cdef size_t size = strlen(name)
    memcpy(room.at + room.used, name, size)
    room.used += size


cdef inline void put_integer(Room *room, const char *name, int64_t value) noexcept nogil:
    """Append an integer, after the text before it."""
    put_name(room, name)
    room.used = put_decimal(room.at + room.used, value) - room.at


cdef void put_string(Room *room, Bytes at, Py_ssize_t size) noexcept nogil:
    """Append UTF-8 text in quotes."""
    cdef unsigned char *to = room.at + room.used
    cdef unsigned char sign
    cdef Py_ssize_t place
    to[0] = c'"'
    to += 1
    for place in range(size):
        sign = escapes[at[place]]
        if sign:
            to[0] = c"\\"
            to[1] = sign
            to += 2
            if sign == c"u":
                memcpy(to, b"00", 2)
                to[2], to[3] = LOWER[at[place] >> 4], LOWER[at[place] & 15]
                to += 4
        else:
            to[0] = at[place]
            to += 1
    to[0] = c'"'
    room.used = to + 1 - room.at


cdef inline void put_pairs(
    Room *room, Bytes at, Py_ssize_t size, const char *digits
) noexcept nogil:
    """Append bytes as hex digits."""
    cdef unsigned char *to = room.at + room.used
    cdef Py_ssize_t place
    for place in range(size):
        to[2 * place] = digits[at[place] >> 4]
        to[2 * place + 1] = digits[at[place] & 15]
    room.used += 2 * size


cdef void put_base64(Room *room, Bytes at, Py_ssize_t size) noexcept nogil:
    """Append bytes as base64, in quotes."""
    cdef const char *signs = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef unsigned char *to
    cdef uint32_t three
    put_name(room, b'"')
    to = room.at + room.used
    while size > 0:
        three = <uint32_t> at[0] << 16
        if size > 1:
            three |= <uint32_t> at[1] << 8
        if size > 2:
            three |= at[2]
        to[0] = signs[three >> 18]
        to[1] = signs[three >> 12 & 63]
        to[2] = signs[three >> 6 & 63] if size > 1 else c"="
        to[3] = signs[three & 63] if size > 2 else c"="
        to += 4
        at += 3
        size -= 3
    room.used = to - room.at
    put_name(room, b'"')


cdef bint is_ascii(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef unsigned char any_bits = 0
    cdef Py_ssize_t place
    for place in range(size):
        any_bits |= at[place]
    return any_bits < 128
