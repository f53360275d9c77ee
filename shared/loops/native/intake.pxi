# The fast path of messages into a producer. Part of `compiled`; the twin is `pure.intake`.
#
# Making any object may start Python's garbage collector, which may run any code, even another send
# of this producer. So nothing is read from a borrowed reference afterwards, and whatever can fail
# comes before the first change: a failure half way would leave a message that nobody waits for.
# For the same reason the future is made before the frame is looked at.

from cpython.object cimport PyTypeObject
from cpython.unicode cimport PyUnicode_GET_LENGTH, PyUnicode_READ_CHAR
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from penstock.shared.formats.java_hash import shard_queue

cdef Py_ssize_t FRAME_BYTES = forms.FRAME_BYTES
cdef Py_ssize_t PLAIN_PROPERTIES_BYTES = forms.PLAIN_PROPERTIES_BYTES
cdef object NO_ROOM = forms.NO_ROOM
cdef tuple NO_ARGUMENTS = ()


def wall_ms():
    return wall_now()


cdef int64_t wall_now() except -1:
    cdef timespec now
    if clock_gettime(CLOCK_REALTIME, &now):
        raise OSError("the machine has no clock")
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef class Intake:
    cdef public FrameOfRuns frame
    cdef public bint closed
    cdef readonly Py_ssize_t unsettled, waiting_bytes
    cdef type outcome
    cdef object sender, limit
    cdef str ack
    cdef KeyNumbers numbers
    cdef dict turns, queues
    cdef Py_ssize_t fixed_bytes, compressed_bytes

    def __init__(self, plain, dict turns not None, dict queues not None):
        if not issubclass(plain.outcome, Outcome):
            raise TypeError("what a send returns is an Outcome")
        self.outcome = plain.outcome
        self.sender = plain.sender
        self.ack = plain.ack
        self.numbers = plain.numbers
        self.limit = plain.limit
        self.turns = turns
        self.queues = queues
        self.fixed_bytes = plain.fixed_bytes
        self.compressed_bytes = plain.compressed_bytes

    def take(self, topic, body, tags, keys, shard, queue, ack, int64_t now_ms):
        if type(topic) is not str or type(body) is not bytes or type(ack) is not str:
            return None
        return self.take_one(topic, body, tags, keys, shard, queue, ack, now_ms)

    def take_batch(self, topic, messages, queue, ack, int64_t now_ms):
        if type(topic) is not str or type(messages) is not list or type(ack) is not str:
            return None
        return self.take_several(topic, messages, queue, ack, now_ms)

    def count(self, Py_ssize_t sends, Py_ssize_t size):
        self.unsettled += sends
        self.waiting_bytes += size

    cdef object take_one(
        self, str topic, bytes body, tags, keys, shard, queue, str ack, int64_t now_ms
    ):
        cdef FrameOfRuns frame
        cdef Outcome future
        cdef bytes raw
        cdef Py_ssize_t length = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t size = self.fixed_bytes + PyUnicode_GET_LENGTH(topic) + length
        cdef bint fixed
        turn = self.turn_of(topic, length)
        if turn is None or length >= self.compressed_bytes:
            return None
        draft = body
        if tags is not None or keys is not None or shard is not None:
            if not (is_text(tags) and is_text(keys) and is_text(shard)):
                return None
            if queue is not None and (shard is not None or not self.has_queue(topic, queue)):
                return None
            raw = properties_of(tags, keys, shard, b"")
            if PyBytes_GET_SIZE(raw) > PLAIN_PROPERTIES_BYTES:
                return None
            if PyBytes_GET_SIZE(raw):
                size += PyBytes_GET_SIZE(raw)
                draft = body, raw, 0, 0
            if shard is not None:
                queue = shard_queue(shard, self.queues[topic])
        elif queue is not None and not self.has_queue(topic, queue):
            return None
        if size > FRAME_BYTES:
            return None
        future = self.make()
        frame = self.fitting(ack, size)
        if frame is None:
            return NO_ROOM
        fixed = queue is not None
        if not fixed:
            queue = next(turn)
        future.key = self.numbers.another(now_ms)
        frame.take(topic, queue, draft, size, future, fixed)
        self.unsettled += 1
        self.waiting_bytes += size
        return future

    cdef object take_several(self, str topic, list messages, queue, str ack, int64_t now_ms):
        cdef FrameOfRuns frame
        cdef Outcome future
        cdef Py_ssize_t length = 0, count = len(messages), size
        cdef bint fixed = queue is not None
        for body in messages:
            if type(body) is not bytes:
                return None
            length += PyBytes_GET_SIZE(body)
        turn = self.turn_of(topic, length)
        if turn is None or count == 0 or not self.has_queue(topic, queue):
            return None
        if PyUnicode_READ_CHAR(topic, 0) == c"%":
            return None
        size = count * (self.fixed_bytes + PyUnicode_GET_LENGTH(topic)) + length
        if size > FRAME_BYTES:
            return None
        drafts = messages[:]
        future = self.make()
        frame = self.fitting(ack, size)
        if frame is None:
            return NO_ROOM
        if not fixed:
            queue = next(turn)
        future.keys = self.numbers.several(now_ms, count)
        future.key = future.keys.data.as_longlongs[0]
        frame.take_batch(topic, queue, drafts, size, future, fixed)
        self.unsettled += 1
        self.waiting_bytes += size
        return future

    cdef FrameOfRuns fitting(self, str ack, Py_ssize_t size):
        """The open frame, if it is of this kind and has room; else None."""
        cdef FrameOfRuns frame = self.frame
        if frame is None or frame.size + size > FRAME_BYTES or frame.ack != (ack or self.ack):
            return None
        return frame

    cdef object turn_of(self, str topic, Py_ssize_t length):
        """The iterator over a topic's queues; None if it is unknown, or the body is too long."""
        cdef Py_ssize_t limit = self.limit.max_message_bytes
        cdef PyObject *turn = PyDict_GetItem(self.turns, topic)
        return None if turn == NULL or length > limit > 0 else <object> turn

    cdef bint has_queue(self, str topic, queue) except -1:
        """Whether a known topic has this queue; None counts as one that it has."""
        if queue is None:
            return True
        return type(queue) is int and 0 <= queue < self.queues[topic]

    cdef Outcome make(self):
        """A future, as its class would make it, but faster."""
        cdef Outcome future = (<PyTypeObject *> self.outcome).tp_new(
            self.outcome, <PyObject *> NO_ARGUMENTS, NULL
        )
        future.sender = self.sender
        return future


cdef inline bint is_text(value) noexcept:
    return value is None or type(value) is str
