"""The loops in Python: the reference for the compiled ones, and what runs without a compiler.

May import what `loops` may. Only `active` imports from here. It is never optimised at the cost of
clarity: it decides which bytes are right. Each file has its counterpart in `native/`, which comes
here for what it does not do itself: then `pure.frame` is imported, which few processes ever need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The class with which this process makes messages, if it is not that of `pure.message`: `active`
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
