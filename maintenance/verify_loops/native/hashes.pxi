# What a record must have elsewhere: Java's hashes, its due time, its index items. Part of
# `compiled`.

cdef int64_t hashed(uint32_t code, Value *text) except -1:
    """Java's hash of a text: `code` is the hash of its beginning, `text` the rest."""
    cdef uint32_t ascii_code = code
    cdef uint8_t units = 0
    cdef Py_ssize_t index
    cdef Bytes four
    cdef bytes raw
    # four at a time: each single step would wait for the previous product
    for index in range(text.size // 4):
        four = text.at + 4 * index
        units |= four[0] | four[1] | four[2] | four[3]
        ascii_code *= 923521
        ascii_code += 29791 * four[0] + 961 * four[1] + 31 * four[2] + four[3]
    for index in range(text.size & ~3, text.size):
        units |= text.at[index]
        ascii_code = 31 * ascii_code + text.at[index]
    if units < 0x80:
        return ascii_code
    raw = text.at[:text.size].decode("utf-8", "replace").encode("utf-16-be")
    for index in range(0, len(raw), 2):
        code = 31 * code + <uint32_t> big(<Bytes> PyBytes_AS_STRING(raw) + index, 2)
    return code


cdef int64_t due_ms(
    Value *level, int64_t stored_ms, int64_t code, const int64_t[::1] levels_ms
) noexcept:
    cdef Py_ssize_t index, number = 0
    if level.size > 9:
        return code
    for index in range(level.size):
        if not c"0" <= level.at[index] <= c"9":
            return code
        number = 10 * number + level.at[index] - c"0"
    if number == 0 or levels_ms.shape[0] == 0:
        return code
    number = min(number, levels_ms.shape[0]) - 1
    return <int64_t> (<uint64_t> stored_ms + <uint64_t> levels_ms[number])


cdef int add_items(Numbers items, Record *found, int64_t place) except -1:
    cdef uint32_t code = <uint32_t> hashed(<uint32_t> hashed(0, &found.topic), &SHARP)
    cdef Value word = found.wanted[KEYS]
    cdef Bytes end = word.at + word.size, stop
    if found.wanted[UNIQUE_KEY].size:
        add_item(items, hashed(code, &found.wanted[UNIQUE_KEY]), place)
    while word.at < end:
        word.size = end - word.at
        stop = <Bytes> memchr(word.at, c" ", word.size)
        if stop != NULL:
            word.size = stop - word.at
        if word.size:
            add_item(items, hashed(code, &word), place)
        word.at += word.size + 1
    return 0


cdef Value SHARP = Value(b"#", 1)


cdef int add_item(Numbers items, int64_t code, int64_t place) except -1:
    items.reserve(2)
    items.put(code if code < 0x80000000 else -code & 0x7FFFFFFF)  # -2**31 has no absolute value: 0
    items.put(place)
    return 0


cdef int64_t key_hash_of(Value *key) noexcept:
    cdef uint64_t code = key.size, word
    cdef Py_ssize_t at = 0, some
    if key.size == 0:
        return 0
    while at < key.size:
        word, some = 0, min(8, key.size - at)
        memcpy(&word, key.at + at, some)
        code = (code ^ word) * 0x9E3779B97F4A7C15ULL
        code ^= code >> 32
        at += 8
    return <int64_t> (code >> 1) or 1
