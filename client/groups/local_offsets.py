"""The offsets of a member of a broadcasting group: RocketMQ's file, in RocketMQ's place.

    ~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json

        {"offsetTable": { {"brokerName":"b","queueId":0,"topic":"orders"}:12 }}

fastjson writes the keys as objects, which JSON does not allow, so the file is neither read nor
written by a JSON library. One process owns it: the one with this client id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.shared.errors import StoreDamaged, StoreUnavailable
from penstock.shared.files.durable import make_directory, replace_file
from penstock.shared.next_steps import look_at, move_away

HOME_VARIABLE = "ROCKETMQ_OFFSETS_HOME"
SAVE_MS = 5000
_ROW = re.compile(r"(\{[^{}]*\})\s*:\s*(-?[0-9]+)")
Offsets = Mapping[tuple[str, int], int]


def offsets_file(client_id: str, group: str) -> Path:
    """Where RocketMQ's client keeps the offsets. The caller has checked both names.

    Raises StoreUnavailable for a user without a home.
    """
    home = os.environ.get(HOME_VARIABLE) or os.path.expanduser("~/.rocketmq_offsets")
    if home.startswith("~"):
        raise StoreUnavailable(
            "there is no home directory for the offsets of a broadcasting consumer",
            f"user id {os.getuid()}",
            f"name a directory for them: export {HOME_VARIABLE}=DIRECTORY",
        )
    return Path(home, client_id, group, "offsets.json")


def encode_offsets(offsets: Offsets, broker_name: str) -> bytes:
    """The file's content, laid out as fastjson does."""
    rows = []
    for (topic, queue_id), offset in sorted(offsets.items()):
        rows.append(
            f'\t\t{{\n\t\t\t"brokerName":{json.dumps(broker_name)},\n\t\t\t"queueId":{queue_id},'
            f'\n\t\t\t"topic":{json.dumps(topic)}\n\t\t}}:{offset}'
        )
    inner = ",\n".join(rows)
    return f'{{\n\t"offsetTable":{{\n{inner}\n\t}}\n}}'.encode()


def decode_offsets(raw: bytes) -> dict[tuple[str, int], int]:
    """(topic, queue) -> next offset. Raises ValueError, KeyError or TypeError."""
    text = raw.decode()
    if text.strip() and '"offsetTable"' not in text:
        raise ValueError("it has no offsetTable")
    found = {}
    for key, offset in _ROW.findall(text):
        queue = json.loads(key)
        found[str(queue["topic"]), int(queue["queueId"])] = int(offset)
    return found


class LocalOffsets:
    """The file of one member: read once, and written every `SAVE_MS` if something has changed."""

    def __init__(self, file: Path) -> None:
        """Raises StoreDamaged for a file that cannot be parsed, and StoreUnavailable for one that
        cannot be read."""
        self._file = file
        self._saved = self._load()
        self._saved_ms = 0

    @property
    def known(self) -> dict[tuple[str, int], int]:
        """The offsets in the file."""
        return self._saved

    def _load(self) -> dict[tuple[str, int], int]:
        found: dict[Path, str] = {}
        for file in (self._file, self._file.with_name(self._file.name + ".bak")):
            try:
                if raw := file.read_bytes():
                    return decode_offsets(raw)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _unusable(file, error) from None
            except (ValueError, KeyError, TypeError) as error:
                found[file] = str(error)
        if found:
            raise StoreDamaged(
                "the offsets of this member cannot be read",
                "; ".join(f"{file}: {why}" for file, why in found.items()),
                f"restore the file, or begin again without it: {move_away(*found)}",
            )
        return {}

    def save(self, offsets: Offsets, broker_name: str, now_ms: int, force: bool = False) -> None:
        """Save the member's offsets. Raises StoreUnavailable; a later call tries again."""
        if not force and now_ms - self._saved_ms < SAVE_MS:
            return
        self._saved_ms = now_ms
        known = self._saved | dict(offsets)
        if known == self._saved:
            return
        content, copy = encode_offsets(known, broker_name), self._file.name + ".bak"
        try:
            make_directory(self._file.parent)
            if self._file.exists():
                replace_file(self._file.with_name(copy), self._file.read_bytes())
            replace_file(self._file, content)
        except OSError as error:
            raise _unusable(self._file, error) from None
        self._saved = known


def _unusable(file: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        "the offsets of this member cannot be kept", f"{file}: {error.strerror}", look_at(file)
    )
