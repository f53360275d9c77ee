"""Objects that a program sends instead of bytes, and how they become a body and come back.

The property `content-type` names the codec that made a body, so that any reader can tell; the table
CODECS has them all. Objects are msgspec structs, dataclasses, attrs classes, pydantic models and
dictionaries. Pydantic is never imported: its models are recognised by what they can do. Pure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from penstock.shared.errors import InvalidArgument, InvalidMessage

CONTENT_TYPE = "content-type"
JSON = "application/json"
MSGPACK = "application/msgpack"


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Attrs(Protocol):
    __attrs_attrs__: ClassVar[Any]


class _Model(Protocol):
    __pydantic_fields__: ClassVar[dict[str, Any]]


# Bodies that `send` accepts besides bytes.
Payload = msgspec.Struct | _Dataclass | _Attrs | _Model | dict[str, Any]
_MARKS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__")


def is_payload(value: object) -> bool:
    """Whether it is an object that has a codec: not a class, and not text."""
    if isinstance(value, type):
        return False
    return isinstance(value, dict) or any([hasattr(type(value), mark) for mark in _MARKS])


def _as_builtins(value: Any) -> Any:
    """For msgspec: the plain form of an object for which it has no codec."""
    if not hasattr(type(value), "__pydantic_fields__"):
        raise NotImplementedError(f"objects of type {type(value).__name__} have no codec")
    return value.model_dump(mode="json")


def _from_builtins(kind: Any, value: Any) -> Any:
    """For msgspec: an object of a type for which it has no codec."""
    if not hasattr(kind, "model_validate_json"):
        raise NotImplementedError(f"objects of type {kind} have no codec")
    # through JSON, where a strict model accepts a date as text
    return kind.model_validate_json(msgspec.json.encode(value))


class Codec(NamedTuple):
    """How bodies of one content type are made, and how the reader for a type is made."""

    encode: Callable[[Any], bytes]
    reader: Callable[[Any], Callable[[bytes], Any]]


CODECS = {
    JSON: Codec(
        msgspec.json.Encoder(enc_hook=_as_builtins).encode,
        lambda kind: msgspec.json.Decoder(kind, dec_hook=_from_builtins).decode,
    ),
    MSGPACK: Codec(
        msgspec.msgpack.Encoder(enc_hook=_as_builtins).encode,
        lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=_from_builtins).decode,
    ),
}


def encode_payload(value: Any, content_type: object = JSON) -> bytes:
    """The body of an object. Raises InvalidMessage where it cannot be encoded as this type."""
    codec = CODECS.get(content_type) if isinstance(content_type, str) else None
    if codec is None:
        raise InvalidMessage(
            "objects are not encoded as this content type",
            repr(content_type)[:80],
            f"it may be {' or '.join(CODECS)}; or encode the object yourself and send bytes",
        )
    try:
        return codec.encode(value)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise InvalidMessage(
            f"the {type(value).__name__} cannot be encoded as {content_type}",
            error,
            "leave out what is no data, or encode it yourself and send bytes",
        ) from error


def decoded(message: Any, kind: Any) -> Any:
    """The object in a message's body. Raises what `decode_payload` does."""
    try:
        return decode_payload(message.body, message.properties.get(CONTENT_TYPE), kind)
    except InvalidMessage as error:
        place = f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
        raise InvalidMessage(error.what, f"{place}: {error.value}", error.hint) from error


def decode_payload(body: bytes, content_type: str | None, kind: Any = Any) -> Any:
    """The object in a body, of the type `kind`. Without a content type a body is taken for JSON,
    or for text if `kind` is str.

    Raises InvalidMessage for a body of another form, InvalidArgument for a type without a codec.
    """
    if kind is bytes:
        return body
    codec = (content_type or "").partition(";")[0].strip().lower()
    if codec.startswith("text/") or not codec:
        if kind is str:
            return _text(body)
        codec = JSON
    elif codec.endswith("+json"):
        codec = JSON
    if codec not in CODECS:
        raise InvalidMessage(
            "the body has a content type that is not known here",
            repr(content_type)[:80],
            f"known are {', '.join(CODECS)}; message.body has the bytes",
        )
    try:
        read = _reader(codec, kind)
    except TypeError as error:
        raise InvalidArgument(
            "no body can be decoded to this type",
            f"{kind!r}: {error}"[:200],
            "use a msgspec.Struct, a dataclass, a pydantic model, dict, list or a plain type",
        ) from error
    try:
        return read(body)
    except (ValueError, NotImplementedError, RecursionError) as error:
        raise _undecodable(getattr(kind, "__name__", str(kind)), error) from error


# At the first use of a type msgspec collects what it knows of it; if another thread uses that half
# way through, the process dies.
_making = threading.Lock()


# Making a reader takes longer than reading most bodies. Programs have few types.
@lru_cache(maxsize=256)
def _reader(content_type: str, kind: Any) -> Callable[[bytes], Any]:
    with _making:
        return CODECS[content_type].reader(kind)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _undecodable("str", error) from error


def _undecodable(name: str, error: Exception) -> InvalidMessage:
    said = "bytes of another form" if name == "Any" else name
    return InvalidMessage(
        f"the body is not of the type {said}", error, "message.body has the bytes as they were sent"
    )
