# Makes records of what a producer sends. Part of `compiled`; the twin is `pure.encode`, which
# gets whatever does not fit here.

from penstock.shared.formats.record_crc import PROP_CRC_ROOM

cdef enum:
    MOST_PROPERTIES = 32767
    # fewer are made in less time than it takes until another thread would run
    FEW_PARCELS = 64

def properties_of(tags, keys, shard, bytes end):
    cdef Text texts[3]
    cdef Py_ssize_t end_bytes = PyBytes_GET_SIZE(end), size = end_bytes
    cdef unsigned char *at
    if (
        not take_text(&texts[0], tags, 6)
        or not take_text(&texts[1], shard, 15)
        or not take_text(&texts[2], keys, 6)
    ):
        return pure.encode.properties_of(tags, keys, shard, end)
    size += texts[0].room + texts[1].room + texts[2].room
    made = PyBytes_FromStringAndSize(NULL, size)
    at = <unsigned char *> PyBytes_AS_STRING(made)
    at = put_text(at, b"TAGS\x01", 5, &texts[0])
    at = put_text(at, b"__SHARDINGKEY\x01", 14, &texts[1])
    at = put_text(at, b"KEYS\x01", 5, &texts[2])
    memcpy(at, PyBytes_AS_STRING(end), end_bytes)
    return made

cdef class RecordMaker:
    cdef bytes born_host, end
    cdef object twin
    cdef int store_bytes, host_bits
    cdef int64_t month_start_ms
    # UNIQ_KEY as a property: name and 0x01, at most 52 characters, 12 digits of the number, 0x02
    cdef unsigned char key[74]
    cdef Py_ssize_t key_lead, key_bytes

    def __init__(self, bytes born_host, origin, shape):
        self.twin = pure.encode.RecordMaker(born_host, origin, shape)
        self.born_host = born_host
        self.month_start_ms = origin.month_start_ms
        raw = b"UNIQ_KEY\x01" + origin.prefix.encode("ascii")
        # `key` has no room for more, and is filled through a pointer
        if len(raw) > 61:
            raise ValueError("the beginning of a UNIQ_KEY has at most 52 characters")
        self.key_lead = len(raw)
        self.key_bytes = self.key_lead + 13
        memcpy(self.key, PyBytes_AS_STRING(raw), self.key_lead)
        self.key[self.key_bytes - 1] = 2
        self.take_shape(shape)

    def take_shape(self, shape):
        self.twin.take_shape(shape)
        self.store_bytes = shape.store_host_bytes
        self.host_bits = BORN_V6 if len(self.born_host) == HOST_V6 else 0
        self.host_bits |= STORE_V6 if self.store_bytes == HOST_V6 else 0
        self.end = PROP_CRC_ROOM if shape.prop_crc else b""

    def pack(self, into, runs):
        cdef Py_buffer buffer
        cdef Py_ssize_t at = 0, place, count = 0
        cdef array.array keys, starts = array.clone(NUMBERS, 0, False)
        cdef bytes name
        cdef list drafts
        cdef int32_t queue_id
        cdef int64_t key
        cdef Parcel *parcels
        # the runs keep alive what the parcels point into; the caller does not change it meanwhile
        runs = list(runs)
        for name, queue_id, drafts, keys in runs:
            check_numbers(keys, len(drafts))
            count += len(drafts)
        parcels = <Parcel *> PyMem_RawMalloc(max(count, 1) * sizeof(Parcel))
        if parcels == NULL:
            raise MemoryError
        try:
            count = 0
            for name, queue_id, drafts, keys in runs:
                for place in range(len(drafts)):
                    key = keys.data.as_longlongs[place]
                    if not self.measure(parcels + count, name, queue_id, drafts[place], key):
                        return self.twin.pack(into, runs)
                    put_number(starts, at)
                    at += parcels[count].size
                    count += 1
            PyObject_GetBuffer(into, &buffer, PyBUF_CONTIG)
            try:
                if at <= buffer.len:
                    self.put_all(<unsigned char *> buffer.buf, parcels, count)
                    put_number(starts, at)
                    return starts
            finally:
                PyBuffer_Release(&buffer)
        finally:
            PyMem_RawFree(parcels)
        return self.twin.pack(into, runs)

    def pack_rows(self, into, rows, order_of):
        cdef Table table = Table(rows)
        cdef Payload order = Payload(order_of)
        cdef Py_buffer buffer
        cdef Parcel *parcels = NULL
        cdef Py_ssize_t at = 0, number, count = order.buffer.len // 8
        if not table.is_whole or order.buffer.len % 8:
            return self.twin.pack_rows(into, rows, order_of)
        parcels = <Parcel *> PyMem_RawMalloc(max(count, 1) * sizeof(Parcel))
        if parcels == NULL:
            raise MemoryError
        try:
            for number in range(count):
                if not table.take(parcels + number, <Bytes> order.buffer.buf + 8 * number) or (
                    not self.fits(parcels + number)
                ):
                    return self.twin.pack_rows(into, rows, order_of)
                at += parcels[number].size
            PyObject_GetBuffer(into, &buffer, PyBUF_CONTIG)
            try:
                if at <= buffer.len:
                    self.put_all(<unsigned char *> buffer.buf, parcels, count)
                    return at
            finally:
                PyBuffer_Release(&buffer)
        finally:
            PyMem_RawFree(parcels)
        return self.twin.pack_rows(into, rows, order_of)

    cdef bint measure(
        self, Parcel *parcel, bytes name, int32_t queue_id, draft, int64_t key
    ) except -1:
        """Note what a record is made of, and its size. Returns whether its properties fit."""
        cdef bytes body, properties
        parcel.flag = parcel.sys_flag = 0
        if type(draft) is bytes:
            body, properties = draft, b""
        else:
            body, properties, parcel.flag, parcel.sys_flag = <tuple?> draft
        parcel.body, parcel.body_bytes = <Bytes> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
        parcel.own = <Bytes> PyBytes_AS_STRING(properties)
        parcel.own_bytes = PyBytes_GET_SIZE(properties)
        parcel.name, parcel.name_bytes = <Bytes> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        parcel.queue_id, parcel.key = queue_id, key
        return self.fits(parcel)

    cdef bint fits(self, Parcel *parcel):
        """Set the record's size. Returns whether its properties fit."""
        parcel.size = AT_BODY - 2 * HOST_V4 + PyBytes_GET_SIZE(self.born_host) + self.store_bytes
        parcel.size += parcel.body_bytes + parcel.name_bytes + PROPERTIES_LENGTH
        parcel.size += parcel.own_bytes + self.key_bytes + PyBytes_GET_SIZE(self.end)
        return parcel.own_bytes + self.key_bytes + PyBytes_GET_SIZE(self.end) <= MOST_PROPERTIES

    cdef int put_all(self, unsigned char *at, Parcel *parcels, Py_ssize_t count) except -1:
        """Make the records while other threads run. A thread that sends need not wait for this."""
        cdef Common common
        cdef bytes born = self.born_host, end = self.end
        common.born, common.born_bytes = <Bytes> PyBytes_AS_STRING(born), PyBytes_GET_SIZE(born)
        common.end, common.end_bytes = <Bytes> PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end)
        common.key, common.key_lead = self.key, self.key_lead
        common.store_bytes, common.host_bits = self.store_bytes, self.host_bits
        common.month_start_ms = self.month_start_ms
        if count < FEW_PARCELS:
            put_parcels(at, parcels, count, &common)
            return 0
        with nogil:
            put_parcels(at, parcels, count, &common)
        return 0


cdef struct Text:
    # a value, and the size of its property with name and separators; 0 if the value is empty
    const char *at
    Py_ssize_t size
    Py_ssize_t room


cdef bint take_text(Text *into, object text, Py_ssize_t around):
    """Whether the text may be a property's value as it is."""
    into.room = 0
    if not text:
        return True
    if type(text) is not str:
        return False
    try:
        into.at = PyUnicode_AsUTF8AndSize(text, &into.size)
    except UnicodeEncodeError:
        return False
    into.room = into.size + around
    return memchr(into.at, 1, into.size) == NULL and memchr(into.at, 2, into.size) == NULL


cdef inline unsigned char *put_text(
    unsigned char *at, const char *lead, Py_ssize_t lead_bytes, Text *text
) noexcept:
    if not text.room:
        return at
    memcpy(at, lead, lead_bytes)
    memcpy(at + lead_bytes, text.at, text.size)
    at[text.room - 1] = 2
    return at + text.room
