# From a caller's `send` to the open frame. Part of `compiled`; the twin is `pure.sending`.

cdef extern from "Python.h":
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR

    enum:
        NOWAIT_LOCK

    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock(PyThread_type_lock, int)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long us, int signals) nogil
    void PyThread_release_lock(PyThread_type_lock)
    unsigned long PyThread_get_thread_ident()
    int PyErr_CheckSignals() except -1


@cython.final
cdef class SendLock:
    cdef PyThread_type_lock lock
    # the thread that holds it, as long as `count` is not 0
    cdef unsigned long owner
    cdef Py_ssize_t count

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            if self.count:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef bint take_free(self) noexcept:
        """Take it unless another thread has it."""
        cdef unsigned long own = PyThread_get_thread_ident()
        if self.count and self.owner == own:
            self.count += 1
            return True
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return False
        self.owner = own
        self.count = 1
        return True

    cdef int leave(self) except -1:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if not self.count:
            PyThread_release_lock(self.lock)
        return 0

    def acquire(self, bint blocking=True):
        cdef PyLockStatus status
        if self.take_free():
            return True
        if not blocking:
            return False
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if status == PY_LOCK_ACQUIRED:
                self.owner = PyThread_get_thread_ident()
                self.count = 1
                return True
            # Ctrl-C ends the wait
            PyErr_CheckSignals()

    def release(self):
        self.leave()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self.leave()

    # what threading.Condition needs from a lock that can be taken twice

    cpdef bint _is_owned(self):
        return self.count > 0 and self.owner == PyThread_get_thread_ident()

    def _release_save(self):
        cdef Py_ssize_t count = self.count
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self.count = 0
        PyThread_release_lock(self.lock)
        return count

    def _acquire_restore(self, Py_ssize_t count):
        # Ctrl-C does not end this wait: `with` releases the lock afterwards
        if not self.take_free():
            with nogil:
                PyThread_acquire_lock_timed(self.lock, -1, 0)
            self.owner = PyThread_get_thread_ident()
        self.count = count


cdef class PlainSender:
    cdef Intake intake
    cdef SendLock lock
    cdef object now_ms
    cdef bint by_wall
    cdef Py_ssize_t most_waiting_bytes

    def __init__(self, Intake intake not None, SendLock lock not None, now_ms, most):
        self.intake = intake
        self.lock = lock
        self.now_ms = now_ms
        self.by_wall = now_ms is wall_ms
        self.most_waiting_bytes = most

    def try_send(self, topic, body, tags, keys, shard, queue, ack):
        if type(topic) is not str or type(body) is not bytes or type(ack) is not str:
            return None
        if not self.lock.take_free():
            return None
        try:
            future = self.take(topic, body, tags, keys, shard, queue, ack)
        finally:
            self.lock.leave()
        return None if future is NO_ROOM else future

    cdef object take(self, str topic, bytes body, tags, keys, shard, queue, str ack):
        cdef Intake intake = self.intake
        cdef int64_t now
        if intake.closed or intake.waiting_bytes > self.most_waiting_bytes or intake.frame is None:
            return None
        now = wall_now() if self.by_wall else self.now_ms()
        return intake.take_one(topic, body, tags, keys, shard, queue, ack, now)
