"""One thing that a broker needs of its machine: how it stands, and what to do if it is not fine."""

from __future__ import annotations

import msgspec

FINE, WARNING, PROBLEM = "fine", "warning", "problem"


class Check(msgspec.Struct, frozen=True):
    """One need: how it stands, what was found, and what to do where that is not fine."""

    name: str
    state: str
    found: str
    remedy: str = ""
