# Where the fields of a record are. Part of `compiled`; in Python this is `formats.record_layout`,
# which draws the record.
#
# C needs these as compile-time constants, so they are computed once more here, each from the one
# before. If one differs from the drawing, loading the module fails, before any log is misread.

from penstock.shared.formats import record_layout

cdef enum:
    MAGIC_V1 = <int> 0xDAA320A7
    MAGIC_V2 = <int> 0xDAA320AB

cdef enum:
    COMPRESSED = 0x01
    TRANSACTION = 0x0C
    PREPARED = 0x04
    ROLLED_BACK = 0x0C
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    INNER_BATCH = 0x80

cdef enum:
    HOST_V4 = 4 + 4
    HOST_V6 = 16 + 4
    V6_EXTRA = HOST_V6 - HOST_V4

cdef enum:
    AT_MAGIC = 4
    AT_BODY_CRC = AT_MAGIC + 4
    AT_QUEUE_ID = AT_BODY_CRC + 4
    AT_FLAG = AT_QUEUE_ID + 4
    AT_QUEUE_OFFSET = AT_FLAG + 4
    AT_PHYSICAL_OFFSET = AT_QUEUE_OFFSET + 8
    AT_SYS_FLAG = AT_PHYSICAL_OFFSET + 8
    AT_SYS_FLAG_LOW = AT_SYS_FLAG + 3
    AT_BORN_TIMESTAMP = AT_SYS_FLAG + 4
    AT_BORN_HOST = AT_BORN_TIMESTAMP + 8
    # with IPv4 hosts, from here on
    AT_STORE_TIMESTAMP = AT_BORN_HOST + HOST_V4
    AT_STORE_HOST = AT_STORE_TIMESTAMP + 8
    AT_RECONSUME_TIMES = AT_STORE_HOST + HOST_V4
    AT_PREPARED_OFFSET = AT_RECONSUME_TIMES + 4
    AT_BODY_LENGTH = AT_PREPARED_OFFSET + 8
    AT_BODY = AT_BODY_LENGTH + 4

cdef enum:
    LENGTH_V1 = 1  # size of the topic's length
    LENGTH_V2 = 2
    PROPERTIES_LENGTH = 2
    SMALLEST = AT_BODY + LENGTH_V1 + PROPERTIES_LENGTH
    CLAIM = AT_MAGIC + 4  # totalSize and magic: without them no bytes count as a record

for _name, _value in (
    ("MAGIC_V1", <uint32_t> MAGIC_V1),
    ("MAGIC_V2", <uint32_t> MAGIC_V2),
    ("SYS_COMPRESSED", COMPRESSED),
    ("SYS_TRANSACTION_MASK", TRANSACTION),
    ("SYS_TRANSACTION_PREPARED", PREPARED),
    ("SYS_TRANSACTION_ROLLBACK", ROLLED_BACK),
    ("SYS_BORN_HOST_V6", BORN_V6),
    ("SYS_STORE_HOST_V6", STORE_V6),
    ("SYS_INNER_BATCH", INNER_BATCH),
    ("HOST_V4_BYTES", HOST_V4),
    ("HOST_V6_BYTES", HOST_V6),
    ("AT_MAGIC", AT_MAGIC),
    ("AT_BODY_CRC", AT_BODY_CRC),
    ("AT_QUEUE_ID", AT_QUEUE_ID),
    ("AT_FLAG", AT_FLAG),
    ("AT_QUEUE_OFFSET", AT_QUEUE_OFFSET),
    ("AT_PHYSICAL_OFFSET", AT_PHYSICAL_OFFSET),
    ("AT_SYS_FLAG", AT_SYS_FLAG),
    ("AT_BORN_TIMESTAMP", AT_BORN_TIMESTAMP),
    ("AT_BORN_HOST", AT_BORN_HOST),
    ("AT_STORE_TIMESTAMP_V4", AT_STORE_TIMESTAMP),
    ("AT_STORE_HOST_V4", AT_STORE_HOST),
    ("AT_RECONSUME_TIMES_V4", AT_RECONSUME_TIMES),
    ("AT_BODY_LENGTH_V4", AT_BODY_LENGTH),
    ("AT_BODY_V4", AT_BODY),
    ("SMALLEST_RECORD_BYTES", SMALLEST),
):
    if getattr(record_layout, _name) != _value:
        raise ImportError(
            f"it has {_name} {_value}, a record has {getattr(record_layout, _name)}"
        )
