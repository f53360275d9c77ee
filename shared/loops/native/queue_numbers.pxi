# Numbers for queues, in the order in which they are first seen. Part of `compiled`; the twin is in
# `pure.queues`. A queue's number is looked up for each message, so each topic has an array of them:
# a dict of pairs would make a tuple and hash it each time.

cdef enum:
    # RocketMQ's limit of a topic's queues. Ids come from the log, where damage may make them
    # anything: larger ones go into a dict, so that no id causes an array of 2**31 numbers.
    NEAR_IDS = 1024


cdef class TopicQueues:
    """The numbers of a topic's queues; -1 for a queue without one."""

    cdef int32_t *near
    cdef int32_t room
    cdef dict far

    def __cinit__(self):
        self.far = {}

    def __dealloc__(self):
        PyMem_RawFree(self.near)

    cdef int32_t number_of(self, int32_t queue_id) except -2:
        if queue_id < self.room:
            return self.near[queue_id]
        return self.far.get(queue_id, -1)

    cdef int put(self, int32_t queue_id, int32_t number) except -1:
        if queue_id >= NEAR_IDS:
            self.far[queue_id] = number
            return 0
        if queue_id >= self.room:
            self.grow(min(NEAR_IDS, max(8, 2 * queue_id)))
        self.near[queue_id] = number
        return 0

    cdef int grow(self, int32_t room) except -1:
        cdef int32_t place
        cdef int32_t *near = <int32_t *> PyMem_RawRealloc(self.near, room * sizeof(int32_t))
        if near == NULL:
            raise MemoryError
        for place in range(self.room, room):
            near[place] = -1
        self.near, self.room = near, room
        return 0


cdef class QueueNumbers:
    cdef readonly list names
    cdef dict topics

    def __init__(self, names=()):
        self.names = []
        self.topics = {}
        for topic, queue_id in names:
            self.number(topic, queue_id)

    def number(self, bytes topic, queue_id):
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"a queue's id is not {queue_id}")
        return self.of(self.topic(topic), topic, queue_id)

    cdef TopicQueues topic(self, bytes name):
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicQueues()
        return found

    cdef int32_t of(self, TopicQueues topic, bytes name, int32_t queue_id) except -1:
        cdef int32_t found = topic.number_of(queue_id)
        if found < 0:
            found = <int32_t> len(self.names)
            topic.put(queue_id, found)
            self.names.append((name, queue_id))
        return found
