"""What a notebook shows of an object: a small HTML table. Pure; all text in it is escaped.

Anybody may have written a message's bytes, and a notebook's page runs scripts.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import error as StructError
from typing import Any

from penstock.shared.errors import StoreDamaged, UnreadableBody

# characters of a body
_MOST_SHOWN = 500


def as_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Names and values under a title; None and "" are left out."""
    from html import escape  # here: clients load this file, and few are in notebooks

    shown = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left"><code>{escape(str(value))}</code></td></tr>'
        for name, value in rows
        if value is not None and value != ""
    )
    return f"<table><caption>{escape(title)}</caption>{shown}</table>"


def page_of(message: Any) -> str:
    """A message. Raises nothing: people also look for faults in a notebook."""
    try:
        fields = ("topic", "queue_id", "queue_offset", "message_id", "tags", "keys", "shard")
        rows = [(name, getattr(message, name)) for name in fields]
        rows += [*message.properties.items(), ("body", as_text(message.body))]
    except (StructError, StoreDamaged, UnreadableBody):
        rows = [("record", repr(message))]
    return as_table("Message", rows)


def as_text(body: bytes) -> str:
    """The beginning of a body; bytes that are not UTF-8 are shown as escapes."""
    text = body[:_MOST_SHOWN].decode("utf-8", "backslashreplace")
    return text if len(body) <= _MOST_SHOWN else f"{text}... ({len(body)} bytes)"
