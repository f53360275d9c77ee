# Puts records of what a producer sends into their place, without the interpreter's lock. Part of
# `compiled`, and of `native/encode.pxi`, which says what they are made of.

# What a record is made of: pointers into data that its sender keeps alive.
cdef struct Parcel:
    Bytes body, own, name
    Py_ssize_t body_bytes, own_bytes, name_bytes, size
    int64_t key
    int32_t queue_id, flag, sys_flag


# What all records of a producer have in common.
cdef struct Common:
    Bytes born, end, key
    Py_ssize_t born_bytes, end_bytes, key_lead, store_bytes
    int64_t month_start_ms
    int32_t host_bits


cdef void put_parcels(
    unsigned char *at, const Parcel *parcels, Py_ssize_t count, const Common *common
) noexcept nogil:
    cdef Py_ssize_t number
    for number in range(count):
        put_parcel(at, parcels + number, common)
        at += parcels[number].size


cdef inline void put_parcel(
    unsigned char *at, const Parcel *parcel, const Common *common
) noexcept nogil:
    cdef int64_t key = parcel.key
    cdef Py_ssize_t blank, raw_bytes = parcel.own_bytes + common.key_lead + 13 + common.end_bytes
    put32(at, <uint32_t> parcel.size)
    put32(at + AT_MAGIC, MAGIC_V1 if parcel.name_bytes <= LENGTH_V1 + 127 else MAGIC_V2)
    put32(
        at + AT_BODY_CRC,
        crc_of(parcel.body, parcel.body_bytes) & 0x7FFFFFFF if parcel.body_bytes else 0,
    )
    put32(at + AT_QUEUE_ID, parcel.queue_id)
    put32(at + AT_FLAG, parcel.flag)
    memset(at + AT_QUEUE_OFFSET, 0, AT_SYS_FLAG - AT_QUEUE_OFFSET)
    put32(at + AT_SYS_FLAG, parcel.sys_flag | common.host_bits)
    put64(at + AT_BORN_TIMESTAMP, common.month_start_ms + (key >> 16))
    at += AT_BORN_HOST
    memcpy(at, common.born, common.born_bytes)
    at += common.born_bytes
    # the broker stamps time and host; a new message was consumed 0 times, and prepares nothing
    blank = AT_BODY_LENGTH - AT_STORE_TIMESTAMP - HOST_V4 + common.store_bytes
    memset(at, 0, blank)
    at += blank
    put32(at, <uint32_t> parcel.body_bytes)
    at += AT_BODY - AT_BODY_LENGTH
    memcpy(at, parcel.body, parcel.body_bytes)
    at += parcel.body_bytes
    memcpy(at, parcel.name, parcel.name_bytes)
    at += parcel.name_bytes
    at[0] = raw_bytes >> 8
    at[1] = raw_bytes & 255
    at += PROPERTIES_LENGTH
    memcpy(at, parcel.own, parcel.own_bytes)
    at += parcel.own_bytes
    memcpy(at, common.key, common.key_lead)
    at += common.key_lead
    put_hex(at, <uint32_t> (key >> 16), 8)
    put_hex(at + 8, <uint32_t> key & 0xFFFF, 4)
    at[12] = 2
    memcpy(at + 13, common.end, common.end_bytes)


cdef inline void put_hex(unsigned char *at, uint32_t value, int digits) noexcept nogil:
    cdef const char *signs = b"0123456789ABCDEF"
    cdef int place
    for place in range(digits - 1, -1, -1):
        at[place] = signs[value & 15]
        value >>= 4
