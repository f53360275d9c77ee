# What an actor asks a socket in each turn, and how it drops a message that has too many parts.
# Part of `compiled`; the twin is `pure.serving`, which also finds ZeroMQ's functions: this module
# is not linked to it.


ctypedef int (*ReceiveFunction)(void *, void *, size_t, int) noexcept nogil
ctypedef int (*GetFunction)(void *, int, void *, size_t *) noexcept nogil

cdef enum:
    ZMQ_RCVMORE = 13
    ZMQ_DONTWAIT = 1
    ZMQ_EVENTS = 15
    ZMQ_POLLIN = 1

cdef size_t get_option = 0
cdef bint is_option_sought = False


def has_message(socket):
    global get_option, is_option_sought
    cdef size_t size = sizeof(int), underlying = socket.underlying
    cdef int events = 0, failed = 1
    if not is_option_sought:
        get_option = pure.serving.addresses()[1]
        is_option_sought = True
    # nothing here waits, so the interpreter's lock is kept
    if get_option:
        failed = (<GetFunction> get_option)(<void *> underlying, ZMQ_EVENTS, &events, &size)
    if failed:
        return pure.serving.has_message(socket)
    return (events & ZMQ_POLLIN) != 0


def drop_parts(socket, int most):
    cdef size_t receive, get, size, underlying = socket.underlying
    cdef int more = 1, count = 0
    receive, get = pure.serving.addresses()
    if not receive or not get:
        return pure.serving.drop_parts(socket, most)
    with nogil:
        while count < most:
            size = sizeof(more)
            if (<GetFunction> get)(<void *> underlying, ZMQ_RCVMORE, &more, &size) or not more:
                break
            # into a buffer of no bytes: ZeroMQ drops what does not fit, and nothing is copied
            if (<ReceiveFunction> receive)(<void *> underlying, NULL, 0, ZMQ_DONTWAIT) < 0:
                break
            count += 1
    return count
