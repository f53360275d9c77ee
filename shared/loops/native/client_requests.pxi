# The requests that are collected for one frame, and their records. Part of `compiled`; in Python
# they are lists of `pure.client_frame`.
#
# Records stand in the order in which they came until the frame is packed; then they, and their
# requests, are grouped by runs.

cdef struct Asked:
    # One request: its records, its key in them, its first record, its run and its recipient.
    Py_ssize_t at, size
    Py_ssize_t key_at, key_bytes
    Py_ssize_t first, count
    Py_ssize_t run, by
    int64_t opaque, queue_id
    bint is_oneway, is_put


cdef class Requests:
    cdef readonly Py_ssize_t size, count, requests
    # who gets the answers, and each one's index in that list
    cdef list whom
    cdef dict numbers
    # (topic, queue, whether it is a batch); topic -> queue -> the run that is still open
    cdef list runs
    cdef dict open_runs
    cdef Room records, asked_room, sizes
    # all records, once they are grouped
    cdef bytes raw

    def __cinit__(self, *arguments):
        self.whom = []
        self.numbers = {}
        self.runs = []
        self.open_runs = {}

    def __dealloc__(self):
        free_room(&self.records)
        free_room(&self.asked_room)
        free_room(&self.sizes)

    cdef inline Asked *all_asked(self) noexcept:
        return <Asked *> self.asked_room.at

    cdef Asked *another(
        self, by, str topic, int64_t queue_id, bint is_batch, Py_ssize_t size, Py_ssize_t count
    ) except NULL:
        """One more request, with room for its records and sizes, which the caller fills in."""
        cdef Asked *asked
        cdef Py_ssize_t run, number
        make_room(&self.records, size)
        make_room(&self.sizes, count * sizeof(int32_t))
        make_room(&self.asked_room, sizeof(Asked))
        number = self.number_of(by)
        run = self.run_of(topic, queue_id, is_batch)
        # from here on nothing can fail
        asked = (<Asked *> self.asked_room.at) + self.requests
        memset(asked, 0, sizeof(Asked))
        asked.at, asked.size = self.size, size
        asked.first, asked.count = self.count, count
        asked.run, asked.by = run, number
        asked.queue_id = queue_id
        self.asked_room.used += sizeof(Asked)
        self.records.used += size
        self.sizes.used += count * sizeof(int32_t)
        self.size += size
        self.count += count
        self.requests += 1
        return asked

    cdef Py_ssize_t number_of(self, by) except -1:
        """The index of a recipient in the list."""
        cdef Py_ssize_t count = len(self.whom)
        cdef object key
        if count and self.whom[count - 1] is by:
            return count - 1
        key = id(by)
        found = self.numbers.get(key)
        if found is None:
            self.numbers[key] = found = count
            self.whom.append(by)
        return found

    cdef Py_ssize_t run_of(self, str topic, queue_id, bint is_batch) except -1:
        cdef dict queues
        cdef Py_ssize_t run = len(self.runs)
        cdef PyObject *found = PyDict_GetItem(self.open_runs, topic)
        if found == NULL:
            queues = self.open_runs[topic] = {}
        else:
            queues = <dict> <object> found
        if is_batch:
            queues.pop(queue_id, None)
        else:
            found = PyDict_GetItem(queues, queue_id)
            if found != NULL:
                return <Py_ssize_t> <object> found
            queues[queue_id] = run
        self.runs.append((topic, queue_id, is_batch))
        return run

    cdef int put_in_order(self) except -1:
        """Group requests and records by runs; within a run they stay in the order they came."""
        cdef Py_ssize_t runs = len(self.runs), number, at = 0, place
        cdef Py_ssize_t *places
        cdef Asked *asked
        cdef Asked *into
        cdef unsigned char *raw
        cdef Room ordered
        if self.raw is not None:
            return 0
        memset(&ordered, 0, sizeof(Room))
        made = PyBytes_FromStringAndSize(NULL, self.size)
        raw = <unsigned char *> PyBytes_AS_STRING(made)
        make_room(&ordered, self.requests * sizeof(Asked))
        into = <Asked *> ordered.at
        places = <Py_ssize_t *> PyMem_RawMalloc((runs + 1) * sizeof(Py_ssize_t))
        if places == NULL:
            free_room(&ordered)
            raise MemoryError
        # where each run begins: after the requests of all runs before it
        memset(places, 0, (runs + 1) * sizeof(Py_ssize_t))
        for number in range(self.requests):
            places[self.all_asked()[number].run + 1] += 1
        for number in range(runs):
            places[number + 1] += places[number]
        for number in range(self.requests):
            asked = self.all_asked() + number
            place = places[asked.run]
            places[asked.run] += 1
            into[place] = asked[0]
        PyMem_RawFree(places)
        for number in range(self.requests):
            memcpy(raw + at, self.records.at + into[number].at, into[number].size)
            into[number].at = at
            at += into[number].size
        free_room(&self.asked_room)
        free_room(&self.records)
        self.asked_room = ordered
        self.raw = made
        return 0
