# What a producer has under way. Part of `compiled`; the twin is `pure.sends`.

from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject


cdef class KeyNumbers:
    cdef readonly object origin
    cdef int64_t month_start_ms
    cdef uint32_t count

    def __init__(self, origin):
        self.origin = origin
        self.month_start_ms = origin.month_start_ms

    def next(self, int64_t now_ms):
        return self.another(now_ms)

    def several(self, int64_t now_ms, Py_ssize_t count):
        cdef array.array numbers = array.clone(NUMBERS, count, False)
        for place in range(count):
            numbers.data.as_longlongs[place] = self.another(now_ms)
        return numbers

    cdef inline int64_t another(self, int64_t now_ms) noexcept:
        self.count = self.count + 1 & 0xFFFF
        return (now_ms - self.month_start_ms) * 65536 + self.count


cdef class FrameRun:
    cdef public FrameOfRuns frame
    cdef public object topic, queue_id
    cdef public bint batch, fixed
    cdef public list drafts, futures
    cdef readonly array.array keys
    cdef public Py_ssize_t first, count


cdef FrameRun add_run(
    FrameOfRuns frame, topic, queue_id, list drafts, array.array keys, bint batch
):
    cdef FrameRun run = FrameRun.__new__(FrameRun)
    run.frame = frame
    run.topic = topic
    run.queue_id = queue_id
    run.batch = batch
    run.drafts = drafts
    run.keys = keys
    run.futures = []
    frame.runs.append(run)
    return run


@cython.nonecheck(True)
cdef class FrameOfRuns:
    cdef public str ack
    cdef public Py_ssize_t size
    cdef public list runs
    cdef public dict open_runs
    cdef public bint watched, stored
    cdef public object answer, error

    def __init__(self, ack):
        self.ack = ack
        self.runs = []
        self.open_runs = {}

    def put(
        self, topic, queue_id, draft, Py_ssize_t size, Outcome future not None, bint fixed=False
    ):
        self.take(topic, queue_id, draft, size, future, fixed)

    cdef int take(
        self, topic, queue_id, draft, Py_ssize_t size, Outcome future, bint fixed
    ) except -1:
        cdef FrameRun run
        cdef dict queues
        cdef PyObject *found = PyDict_GetItem(self.open_runs, topic)
        if found == NULL:
            queues = self.open_runs[topic] = {}
        else:
            queues = <dict?> <object> found
        found = PyDict_GetItem(queues, queue_id)
        if found == NULL:
            run = add_run(self, topic, queue_id, [], array.clone(NUMBERS, 0, False), False)
            queues[queue_id] = run
        else:
            run = <FrameRun?> <object> found
        future.run = run
        if fixed:
            run.fixed = True
        future.index = len(run.drafts)
        run.drafts.append(draft)
        put_number(run.keys, future.key)
        run.futures.append(future)
        self.size += size
        return 0

    def put_batch(
        self,
        topic,
        queue_id,
        list drafts not None,
        Py_ssize_t size,
        Outcome future not None,
        bint fixed=False,
    ):
        self.take_batch(topic, queue_id, drafts, size, future, fixed)

    cdef int take_batch(
        self, topic, queue_id, list drafts, Py_ssize_t size, Outcome future, bint fixed
    ) except -1:
        cdef FrameRun run
        cdef PyObject *queues = PyDict_GetItem(self.open_runs, topic)
        check_numbers(future.keys, len(drafts))
        if queues != NULL:
            (<dict?> <object> queues).pop(queue_id, None)
        run = add_run(self, topic, queue_id, drafts, future.keys, True)
        run.fixed = fixed
        run.futures.append(future)
        future.run = run
        self.size += size
        return 0


@cython.nonecheck(True)
cdef class Outcome:
    cdef public object sender, error, callbacks
    cdef readonly int64_t key
    cdef readonly array.array keys
    cdef public FrameRun run
    cdef public Py_ssize_t index
    cdef public bint seen

    def __init__(self, sender, int64_t key, keys=None):
        self.sender = sender
        self.key = key
        self.keys = keys
        if keys is not None:
            check_numbers(self.keys, len(keys))

    def done(self):
        cdef FrameOfRuns frame
        if self.error is not None:
            return True
        if self.run is None:
            return False
        frame = self.run.frame
        return frame.answer is not None or frame.error is not None

    def ask(self):
        self.seen = True
        return self.run is not None and self.run.frame.stored
