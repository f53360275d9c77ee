"""What a broker registers: its topics, and their version. Two forms are read; JSON is written.

JSON          {"filterServerList": [], "topicConfigSerializeWrapper": {...}}
compressed    one stream of zlib: a length and the JSON of the version; how many topics, then of
              each a length and a line, NAME READ WRITE PERM FILTER [ATTRIBUTES]; what follows
              is not needed here
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from penstock.remoting.command import MAX_FRAME_BYTES, Int32
from penstock.remoting.naming.words import DataVersion
from penstock.shared.errors import ProtocolError
from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.store.rocketmq_json import parse_fastjson

# Brokers before this version send the wrapper alone as the body.
_FIRST_WITH_A_BODY = 37
_LENGTH = struct.Struct(">i")
# The most bytes that a compressed body may expand to, and the most topics: all clients wait while a
# registration is read, and RocketMQ's brokers have tens of thousands of topics.
_MOST_BYTES = MAX_FRAME_BYTES
MOST_TOPICS = 65_536
# The most bytes of fastjson's own dialect of JSON, which a regular expression goes through.
_MOST_FASTJSON_BYTES = 4 << 20


class Registration(msgspec.Struct, frozen=True):
    """A broker's topics, all or those that have changed."""

    topics: Mapping[str, TopicConfig] = {}
    version: DataVersion = DataVersion()


class _Topic(msgspec.Struct, frozen=True, rename="camel"):
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    order: bool = False
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    attributes: dict[str, str] | None = None


class _Wrapper(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_table: dict[str, _Topic] | None = None
    data_version: DataVersion = DataVersion()


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper = _Wrapper()


def decode_registration(body: bytes | memoryview, is_compressed: bool, sender: int) -> Registration:
    """`sender` is the broker's version. Raises ProtocolError."""
    if not body:
        return Registration()
    try:
        if is_compressed:
            return _decode_lines(bytes(body))
        wrapper = _decode_json(body, _Wrapper if sender < _FIRST_WITH_A_BODY else _Body)
        table = wrapper.topic_config_table or {}
        _check_count(len(table))
        # Python's reader accepts half a surrogate pair, but no list of topics could be written with
        # one
        "".join(table).encode()
    except (msgspec.MsgspecError, ValueError, RecursionError, struct.error, zlib.error) as error:
        raise ProtocolError("a broker's registration cannot be read", str(error)[:200]) from None
    return Registration({name: _config(each) for name, each in table.items()}, wrapper.data_version)


def _decode_json(body: bytes | memoryview, kind: type[_Body] | type[_Wrapper]) -> _Wrapper:
    try:
        found = msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.DecodeError:
        if len(body) > _MOST_FASTJSON_BYTES:
            raise
        # integers may be keys here, for static topics
        found = msgspec.convert(parse_fastjson(bytes(body).decode()), kind, strict=False)
    return found if isinstance(found, _Wrapper) else found.topic_config_serialize_wrapper


def _check_count(count: int) -> None:
    if count > MOST_TOPICS:
        raise ValueError(f"it has {count} topics, and {MOST_TOPICS} are the most")


def _config(said: _Topic) -> TopicConfig:
    return TopicConfig(
        said.read_queue_nums,
        said.write_queue_nums,
        said.perm,
        said.order,
        said.attributes or {},
        said.topic_filter_type,
        said.topic_sys_flag,
    )


def _decode_lines(body: bytes) -> Registration:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, _MOST_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    raw, at = _piece(data, 0)
    version = msgspec.json.decode(raw, type=DataVersion)
    (count,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    _check_count(count)
    topics = {}
    for _ in range(count):
        raw, at = _piece(data, at)
        name, read, write, perm, kind, *rest = raw.decode().split(" ", 5)
        attributes = msgspec.json.decode(rest[0], type=dict[str, str]) if rest and rest[0] else {}
        said = {"readQueueNums": read, "writeQueueNums": write, "perm": perm}
        topic = msgspec.convert(said, _Topic, strict=False)
        topics[name] = _config(replace(topic, attributes=attributes, topic_filter_type=kind))
    return Registration(topics, version)


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    start = at + _LENGTH.size
    if not 0 <= size <= len(data) - start:
        raise ValueError(f"a length is {size}, and {len(data) - start} bytes are left")
    return data[start : start + size], start + size


def encode_registration(registration: Registration) -> bytes:
    """Encode as JSON, which every name server since 3.0.11 reads."""
    table = {
        name: {
            "attributes": each.attributes,
            "order": each.order,
            "perm": each.perm,
            "readQueueNums": each.read_queues,
            "topicFilterType": each.filter_type,
            "topicName": name,
            "topicSysFlag": each.sys_flag,
            "writeQueueNums": each.write_queues,
        }
        for name, each in registration.topics.items()
    }
    wrapper = {"dataVersion": registration.version, "topicConfigTable": table}
    return msgspec.json.encode({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
