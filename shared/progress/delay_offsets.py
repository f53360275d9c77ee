"""config/delayOffset.json: the next queue offset of each delay level, as RocketMQ keeps it.

    {"dataVersion": ..., "offsetTable": {"3": 120, ...}}

Only the codec. The scheduler writes the file; a start and a check only read it.
"""

from __future__ import annotations

import json
from typing import Any


def delay_offsets(document: dict[str, Any]) -> dict[int, int] | None:
    """Delay level -> queue offset; None for an empty object, which is that of a missing file.

    Raises ValueError for an object of another form.
    """
    if not document:
        return None
    table = document.get("offsetTable")
    if not isinstance(table, dict):
        raise ValueError("offsetTable is not an object")
    found = {int(level): at for level, at in table.items()}
    if not all(isinstance(at, int) and at >= 0 for at in found.values()):
        raise ValueError(f"offsetTable holds no queue offset: {json.dumps(table)[:80]}")
    return found
