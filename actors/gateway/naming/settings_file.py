"""The settings that a name server keeps for operators: kvConfig.json, in RocketMQ's form.

    {"configTable": {namespace: {key: value}}}

It has one writer, the process of the name server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.remoting.naming.server import Settings
from penstock.shared.store.rocketmq_json import encode_document, load_document, save_document


def load_settings(file: Path) -> Settings:
    """Empty if there is no file. Raises StoreDamaged, OSError."""
    return load_document(file, _build)


def _build(document: dict[str, Any]) -> Settings:
    table = document.get("configTable") or {}
    if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
        raise ValueError("configTable is not an object of objects")
    return {
        str(namespace): {str(key): str(value) for key, value in each.items()}
        for namespace, each in table.items()
    }


def save_settings(file: Path, settings: Settings) -> None:
    """Durable on return. Raises OSError."""
    save_document(file, encode_document({"configTable": settings}))
