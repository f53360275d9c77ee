# Bytes that grow, and that no Python object owns. Part of `compiled`.

cdef struct Room:
    # `used` of `size` bytes are filled
    unsigned char *at
    Py_ssize_t used
    Py_ssize_t size


cdef int make_room(Room *room, Py_ssize_t more) except -1:
    """Make room for this many bytes after those that are used."""
    cdef Py_ssize_t size = max(room.size, 1024)
    cdef void *at
    if room.used + more <= room.size:
        return 0
    while size < room.used + more:
        size *= 2
    at = PyMem_RawRealloc(room.at, size)
    if at == NULL:
        raise MemoryError
    room.at = <unsigned char *> at
    room.size = size
    return 0


cdef void free_room(Room *room) noexcept:
    PyMem_RawFree(room.at)
    memset(room, 0, sizeof(Room))
