"""The loops in Python: what the compiled ones are held to, and what runs without a compiler.

May import what `loops` may. Only `active` imports from here. Never clever for speed: this is what
says which bytes are right. A file here has its counterpart in `native/`, which looks here for what
it does not do itself: `pure.frame` is imported when that is first wanted, and few processes ever
want it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# What this process makes messages with, where that is not the class of `pure.message`: `active`
# puts the compiled one here.
message_class: Any = None

_MODULES = {
    *("answer", "client_frame", "columns", "encode", "frame", "intake", "message"),
    *("plain", "queues", "ranges", "sending", "sends", "serving", "timers", "walk"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
