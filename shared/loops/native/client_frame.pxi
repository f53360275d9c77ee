# What RocketMQ's clients send, collected for one frame. Part of `compiled`; the twin is
# `pure.client_frame`. client_taking.pxi takes the requests, client_requests.pxi keeps them, and
# client_answers.pxi answers them.

cdef class ClientFrame(Requests):
    cdef public object since_ms
    cdef readonly bint is_full
    cdef object rules
    cdef bytes added
    cdef bint prop_crc
    cdef Py_ssize_t most_body, most_bytes, most_records
    # the topic of the last message
    cdef str topic

    def __init__(self, rules):
        self.rules = rules
        self.added = rules.added
        self.prop_crc = rules.prop_crc
        self.most_body = rules.most_body
        self.most_bytes = rules.most_bytes
        self.most_records = rules.most_records
        self.since_ms = 0

    def take(
        self,
        data,
        Py_ssize_t at,
        by,
        bytes born_host not None,
        dict topics not None,
        Py_ssize_t most,
    ):
        cdef Py_buffer buffer
        cdef Py_ssize_t size
        self.check_open()
        PyObject_GetBuffer(data, &buffer, PyBUF_CONTIG_RO)
        try:
            if not 0 <= at <= buffer.len:
                raise ValueError("frames begin inside their bytes")
            while most > 0 and PyBytes_GET_SIZE(born_host) == HOST_V4:
                size = take_one(
                    self, <Bytes> buffer.buf + at, buffer.len - at, by, born_host, topics
                )
                if not size:
                    break
                at += size
                most -= 1
            return at
        finally:
            PyBuffer_Release(&buffer)

    def put(
        self,
        by,
        str topic not None,
        int64_t queue_id,
        bytes records not None,
        sizes,
        bint is_batch,
    ):
        cdef Asked *asked
        cdef list each = list(sizes)
        self.check_open()
        if sum(each) != PyBytes_GET_SIZE(records):
            raise ValueError("records have the sizes that are said")
        asked = self.put_records(by, topic, queue_id, records, each, is_batch)
        if asked == NULL:
            return False
        asked.is_put = True
        return True

    cdef Asked *put_records(
        self, by, str topic, int64_t queue_id, bytes records, list sizes, bint is_batch
    ) except? NULL:
        """NULL if there is no room."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(records), count = len(sizes), number
        cdef Asked *asked
        cdef int32_t *into
        if not self.has_room(size, count):
            return NULL
        for each in sizes:
            if not 0 <= each <= 0x7FFFFFFF:
                raise ValueError("a record has 31 bits of bytes")
        asked = self.another(by, topic, queue_id, is_batch, size, count)
        memcpy(self.records.at + asked.at, PyBytes_AS_STRING(records), size)
        into = (<int32_t *> self.sizes.at) + asked.first
        for number in range(count):
            into[number] = sizes[number]
        return asked

    cdef bint has_room(self, Py_ssize_t size, Py_ssize_t count) noexcept:
        size += self.size
        count += self.count
        # what does not fit into any frame gets one for itself
        if self.count and (size > self.most_bytes or count > self.most_records):
            self.is_full = True
            return False
        return True

    cdef int check_open(self) except -1:
        if self.raw is not None:
            raise ValueError("the frame has been packed")
        return 0

    def pack(self):
        cdef list runs = []
        cdef Py_ssize_t number
        self.put_in_order()
        counts = [0] * len(self.runs)
        for number in range(self.requests):
            counts[self.all_asked()[number].run] += self.all_asked()[number].count
        for (topic, queue_id, is_batch), count in zip(self.runs, counts, strict=True):
            runs.append((topic, queue_id, count, is_batch))
        return runs, self.raw

    def parts(self):
        cdef Py_ssize_t number
        self.put_in_order()
        return [self.part(number) for number in range(self.requests)]

    cdef ClientFrame part(self, Py_ssize_t number):
        """A frame with one of the requests."""
        cdef ClientFrame part = ClientFrame(self.rules)
        cdef Asked *asked = self.all_asked() + number
        cdef Asked *own
        topic, queue_id, is_batch = self.runs[asked.run]
        own = part.another(
            self.whom[asked.by], topic, queue_id, is_batch, asked.size, asked.count
        )
        memcpy(
            part.records.at, <Bytes> PyBytes_AS_STRING(self.raw) + asked.at, asked.size
        )
        memcpy(
            part.sizes.at, self.sizes.at + asked.first * sizeof(int32_t),
            asked.count * sizeof(int32_t),
        )
        own.key_at, own.key_bytes = asked.key_at, asked.key_bytes
        own.opaque = asked.opaque
        own.is_oneway, own.is_put = asked.is_oneway, asked.is_put
        part.since_ms = self.since_ms
        return part

    def asked(self):
        cdef Py_ssize_t number
        cdef Asked *asked
        cdef list found = []
        self.put_in_order()
        for number in range(self.requests):
            asked = self.all_asked() + number
            found.append((self.whom[asked.by], asked.opaque, bool(asked.is_oneway)))
        return found

    def answers(self, tuple words not None, bytes lead not None, places):
        cdef Py_ssize_t number, count
        cdef Room *rooms
        self.put_in_order()
        count = len(self.whom)
        rooms = <Room *> PyMem_RawMalloc((count + 1) * sizeof(Room))
        if rooms == NULL:
            raise MemoryError
        memset(rooms, 0, (count + 1) * sizeof(Room))
        try:
            others = put_answers(self, rooms, words, lead, places)
            answers = {
                self.whom[number]: (<char *> rooms[number].at)[: rooms[number].used]
                for number in range(count)
                if rooms[number].used
            }
            return answers, others
        finally:
            for number in range(count):
                free_room(rooms + number)
            PyMem_RawFree(rooms)
