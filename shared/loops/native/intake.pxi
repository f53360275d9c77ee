# The way of messages into a producer. Part of `compiled`; the twin is `pure.intake`.
#
# Making any object may start Python's garbage collector, and that may run any code, this producer's
# too. So nothing is read from a borrowed reference afterwards, and the future exists before the
# first thing changes: a failure half way would leave a message that nobody waits for.

from cpython.object cimport PyTypeObject
from cpython.unicode cimport PyUnicode_GET_LENGTH, PyUnicode_READ_CHAR
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cdef Py_ssize_t FRAME_BYTES = forms.FRAME_BYTES
cdef Py_ssize_t PLAIN_PROPERTIES_BYTES = forms.PLAIN_PROPERTIES_BYTES
cdef tuple NO_ARGUMENTS = ()
# there is one 0; an equal object that is another one takes the longer way
cdef object NO_FLAG = 0


def wall_ms():
    cdef timespec now
    if clock_gettime(CLOCK_REALTIME, &now):
        raise OSError("the machine has no clock")
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef class OpenFrame:
    cdef public FrameOfRuns frame

    def frame_for(self, str ack not None, Py_ssize_t size):
        return self.fitting(ack, size)

    cdef FrameOfRuns fitting(self, str ack, Py_ssize_t size):
        cdef FrameOfRuns frame = self.frame
        if frame is None or frame.ack != ack or frame.size + size > FRAME_BYTES:
            frame = self._begin(ack)
            if frame is None:
                raise TypeError("a new frame is there")
        return frame

    def _begin(self, ack):
        raise NotImplementedError


cdef class Intake:
    cdef public Py_ssize_t unsettled, waiting_bytes
    cdef type outcome
    cdef object sender, limit, routes
    cdef str ack
    cdef KeyNumbers numbers
    cdef dict turns
    cdef Py_ssize_t fixed_bytes, compressed_bytes
    cdef OpenFrame open_frame

    def __init__(self, plain, routes, OpenFrame open_frame not None):
        if not issubclass(plain.outcome, Outcome):
            raise TypeError("what a send returns is an Outcome")
        self.outcome = plain.outcome
        self.sender = plain.sender
        self.ack = plain.ack
        self.numbers = plain.numbers
        self.limit = plain.limit
        self.routes = routes
        self.turns = routes.turns
        self.fixed_bytes = plain.fixed_bytes
        self.compressed_bytes = plain.compressed_bytes
        self.open_frame = open_frame

    def send(
        self, topic, body, tags, keys, shard, queue, properties, flag, ack, wait, int64_t now_ms
    ):
        cdef Outcome future
        if (
            type(topic) is str
            and type(body) is bytes
            and type(ack) is str
            and wait is True
            and properties is None
            and flag is NO_FLAG
        ):
            future = self.take(topic, body, tags, keys, shard, queue, ack, now_ms)
            if future is not None:
                return future
        return self._send_other(
            topic, body, tags, keys, shard, queue, properties, flag, ack, wait, now_ms
        )

    def send_batch(self, topic, messages, shard, queue, ack, wait, int64_t now_ms):
        cdef Outcome future
        if (
            type(topic) is str
            and type(messages) is list
            and type(ack) is str
            and wait is True
            and shard is None
        ):
            future = self.take_batch(topic, messages, queue, ack, now_ms)
            if future is not None:
                return future
        return self._send_other_batch(topic, messages, shard, queue, ack, wait, now_ms)

    cdef Outcome take(
        self, str topic, bytes body, tags, keys, shard, queue, str ack, int64_t now_ms
    ):
        cdef FrameOfRuns frame
        cdef Outcome future
        cdef bytes raw
        cdef Py_ssize_t length = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t size = self.fixed_bytes + PyUnicode_GET_LENGTH(topic) + length
        turn = self.turn_of(topic, length)
        if turn is None or length >= self.compressed_bytes or not is_number(queue):
            return None
        draft = body
        if tags is not None or keys is not None or shard is not None:
            if not (is_text(tags) and is_text(keys) and is_text(shard)):
                return None
            raw = properties_of(tags, keys, shard, b"")
            if PyBytes_GET_SIZE(raw) > PLAIN_PROPERTIES_BYTES:
                return None
            if PyBytes_GET_SIZE(raw):
                size += PyBytes_GET_SIZE(raw)
                draft = body, raw, 0, 0
        queue_id = self.queue_of(topic, turn, shard, queue)
        future = self.make()
        future.key = self.numbers.another(now_ms)
        frame = self.open_frame.fitting(ack or self.ack, size)
        frame.take(topic, queue_id, draft, size, future)
        self.unsettled += 1
        self.waiting_bytes += size
        return future

    cdef Outcome take_batch(self, str topic, list messages, queue, str ack, int64_t now_ms):
        cdef FrameOfRuns frame
        cdef Outcome future
        cdef Py_ssize_t length = 0, count = len(messages), size
        for body in messages:
            if type(body) is not bytes:
                return None
            length += PyBytes_GET_SIZE(body)
        turn = self.turn_of(topic, length)
        if turn is None or count == 0 or not is_number(queue):
            return None
        if PyUnicode_READ_CHAR(topic, 0) == c"%":
            return None
        size = count * (self.fixed_bytes + PyUnicode_GET_LENGTH(topic)) + length
        drafts = messages[:]
        queue_id = self.queue_of(topic, turn, None, queue)
        future = self.make()
        future.keys = self.numbers.several(now_ms, count)
        future.key = future.keys.data.as_longlongs[0]
        frame = self.open_frame.fitting(ack or self.ack, size)
        frame.take_batch(topic, queue_id, drafts, size, future)
        self.unsettled += 1
        self.waiting_bytes += size
        return future

    cdef object turn_of(self, str topic, Py_ssize_t length):
        """The queues of the topic in turn; None where they are not known, or a body is too long."""
        cdef Py_ssize_t limit = self.limit.max_message_bytes
        cdef PyObject *turn = PyDict_GetItem(self.turns, topic)
        return None if turn == NULL or length > limit > 0 else <object> turn

    cdef object queue_of(self, str topic, turn, shard, queue):
        if shard is None and queue is None:
            return next(turn)
        return self.routes.queue_for(topic, shard, queue)

    cdef Outcome make(self):
        """A future, as its class would make it, but at once."""
        cdef Outcome future = (<PyTypeObject *> self.outcome).tp_new(
            self.outcome, <PyObject *> NO_ARGUMENTS, NULL
        )
        future.sender = self.sender
        return future

    def _send_other(self, *arguments):
        raise NotImplementedError

    def _send_other_batch(self, *arguments):
        raise NotImplementedError


cdef inline bint is_text(value) noexcept:
    return value is None or type(value) is str


cdef inline bint is_number(value) noexcept:
    return value is None or type(value) is int
