"""Templates and selections, by which `consume` and `tail` print parts of a message. Pure.

A template has kcat's fields, and \\n, \\t, \\0, \\xHH. A selection is a path into the object of a
body, in jq's form: `.customer.name`, `.lines[0]`, `.lines[].price`, `."odd name"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.shared.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client.core.message import Message

# with kcat's letters, where it has the field
FIELDS: dict[str, tuple[str, Callable[[Message], object]]] = {
    "t": ("topic", lambda m: m.topic),
    "p": ("queue", lambda m: m.queue_id),
    "o": ("offset in the queue", lambda m: m.queue_offset),
    "k": ("keys", lambda m: m.keys or ""),
    "K": ("length of the keys in bytes", lambda m: len((m.keys or "").encode())),
    "s": ("body, or what --select has found", lambda m: m.body),
    "S": ("length of the body in bytes", lambda m: len(m.body)),
    "T": ("when it was stored, ms since 1970", lambda m: m.store_timestamp_ms),
    "h": ("properties: a=1,b=2", lambda m: ",".join(f"{k}={v}" for k, v in m.properties.items())),
    "g": ("tags", lambda m: m.tags or ""),
    "i": ("message id", lambda m: m.message_id),
}
_PARTS = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_STEPS = re.compile(r'\.?\[(?P<at>(?:-?\d+)?)\]|\."(?P<quoted>[^"]*)"|\.(?P<name>[\w-]+)', re.ASCII)

Part = bytes | Callable[["Message"], object]


def parse_template(text: str) -> list[Part | None]:
    """The template's parts in order: text, fields, None for the body. Raises InvalidArgument."""
    parts: list[Part | None] = []
    for found in _PARTS.finditer(text):
        field, escape = found["field"], found["escape"]
        if found["text"] is not None:
            parts.append(found["text"].encode())
        elif field == "%":
            parts.append(b"%")
        elif field is not None:
            if field not in FIELDS:
                raise _no_such(f"%{field}")
            parts.append(None if field == "s" else FIELDS[field][1])
        elif escape.startswith("x") and len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:]))
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape].encode())
        else:
            raise _no_such(f"\\{escape}")
    return parts


def filled(parts: Iterable[Part | None], message: Message, body: bytes) -> bytes:
    """The template filled in for a message."""
    return b"".join(
        part if isinstance(part, bytes) else body if part is None else str(part(message)).encode()
        for part in parts
    )


def parse_path(text: str) -> list[str | int | None]:
    """The steps of a selection: names, numbers, and None for every element. Raises
    InvalidArgument."""
    steps: list[str | int | None] = []
    at = 0
    while at < len(text) and text != ".":
        found = _STEPS.match(text, at)
        if found is None:
            raise InvalidArgument(
                "this selection cannot be read",
                f"{text}, at {text[at:]!r}"[:200],
                'as in .customer.name, .lines[0].price, .lines[], ."odd name"',
            )
        inside = found["at"]
        if inside is not None:
            steps.append(int(inside) if inside else None)
        else:
            steps.append(found["quoted"] if found["quoted"] is not None else found["name"])
        at = found.end()
    if not text:
        raise InvalidArgument("this selection is empty", hint="a dot selects the whole object: .")
    return steps


def selected(value: Any, steps: list[str | int | None]) -> Iterator[Any]:
    """The values that a path leads to; None for what does not exist, as in jq."""
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if step is None:
        inner = value.values() if isinstance(value, dict) else value
        for each in inner if isinstance(value, dict | list) else ():
            yield from selected(each, rest)
    elif isinstance(step, int):
        has = isinstance(value, list) and -len(value) <= step < len(value)
        yield from selected(value[step] if has else None, rest)
    else:
        yield from selected(value.get(step) if isinstance(value, dict) else None, rest)


def _no_such(field: str) -> InvalidArgument:
    known = ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in FIELDS.items())
    return InvalidArgument(
        "the template has a field that there is not", field, f"there are {known}"
    )
