"""RocketMQ's JSON files under config/: read as fastjson writes them, replaced as a whole.

fastjson writes integer keys without quotes, which JSON does not allow; `parse_fastjson` takes both.
The last version of a file is kept as NAME.bak, which counts where the file itself is missing, empty
or broken. This file does not know what the documents contain.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file
from penstock.shared.next_steps import move_away

T = TypeVar("T")
_log = logging.getLogger(__name__)

# A string, which is kept, or a bare integer key after { or ,
# The string comes first: it is matched as a whole, so a part that looks like a key is kept.
_STRING_OR_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)')


def parse_fastjson(text: str) -> Any:
    """JSON whose objects may have bare integers as keys. Raises ValueError."""
    return json.loads(_STRING_OR_KEY.sub(lambda m: m[1] if m[1] else f'{m[2]}"{m[3]}"{m[4]}', text))


def encode_document(document: dict[str, Any]) -> bytes:
    """The document roughly as fastjson formats it: tabs, sorted keys, UTF-8.

    Integer keys get quotes. fastjson reads both forms, other programs only this one.
    """
    return encode_value(document).encode()


def encode_value(value: Any) -> str:
    """The same for any value in a document."""
    return json.dumps(value, indent="\t", sort_keys=True, ensure_ascii=False)


def encode_object(texts: Mapping[str, str]) -> str:
    """The same for an object whose values are encoded already."""
    if not texts:
        return "{}"
    deeper = {key: text.replace("\n", "\n\t") for key, text in sorted(texts.items())}
    return "{" + ",".join([f"\n\t{encode_value(k)}: {v}" for k, v in deeper.items()]) + "\n}"


def count_change(document: dict[str, Any], now_ms: int) -> None:
    """Count a change in `dataVersion`, as RocketMQ does. `now_ms` is wall time."""
    found = document.get("dataVersion")  # may be anything in a file that was edited by hand
    version = found if isinstance(found, dict) else {"stateVersion": 0}
    counter = version.get("counter", 0)
    version["counter"] = counter + 1 if isinstance(counter, int) else 1
    version["timestamp"] = now_ms
    document["dataVersion"] = version


def load_document(file: Path, build: Callable[[dict[str, Any]], T]) -> T:
    """What `build` makes of the file's object, or of {} if there is none. Falls back to the copy.

    `build` raises ValueError for an object of another form, which then counts as broken, like text
    that is not JSON. Raises StoreDamaged if there is a file and neither it nor the copy can be
    read; OSError. Changes nothing, where RocketMQ would delete the broken one.
    """
    broken: dict[Path, str] = {}
    for candidate in (file, file.with_name(file.name + ".bak")):
        try:
            raw = read_file(candidate)
        # other errors are raised: a file without permission exists, and must not count as missing
        except (FileNotFoundError, NotADirectoryError):
            continue
        # RocketMQ takes an empty file for a missing one, not for a broken one
        if not raw.strip():
            continue
        try:
            document = parse_fastjson(raw.decode())
            if isinstance(document, dict):
                found = build(document)
                if candidate != file:  # it is older: later changes are lost
                    _log.warning(
                        "%s is used in place of %s", candidate, _told(broken) or f"{file}: gone"
                    )
                return found
            broken[candidate] = "not an object"
        # JSON of unlimited depth raises RecursionError, and is damage like any other
        except (ValueError, RecursionError) as error:
            broken[candidate] = str(error)
    if broken:
        name = f"{file.parent.name}/{file.name}"
        raise StoreDamaged(
            f"{name} cannot be read as RocketMQ's JSON",
            _told(broken),
            f"restore it from a copy, or go on without it: {move_away(*broken)}",
        )
    return build({})


def _told(broken: dict[Path, str]) -> str:
    return "; ".join(f"{each}: {why}" for each, why in broken.items())


def save_document(file: Path, content: bytes, before: bytes = b"") -> None:
    """Durable on return; the previous version is kept as NAME.bak. Raises OSError.

    `before` is what was saved here last: if the file still has it, it need not be parsed. A broken
    file is not kept: the copy may be the only good one, and must survive a crash between the two
    replacements. One writer at a time: the process that owns the file.
    """
    make_directory(file.parent)
    raw = read_file(file) if file.exists() else b""
    if raw and (raw == before or _is_object(raw)):
        # A copy instead of a rename: RocketMQ renames, and a crash then leaves no file.
        replace_file(file.with_name(file.name + ".bak"), raw)
    replace_file(file, content)


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(parse_fastjson(raw.decode()), dict)
    except (ValueError, RecursionError):
        return False
