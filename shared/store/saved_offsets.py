"""penstock/exact-offsets.json: the offsets of exactly-once groups, as of a log offset.

The queue of OFFSETS_TOPIC is what counts. But a group's last record there may expire with its
segment, so the writer saves all values from time to time; a new writer reads on from
`queue_offset`. The saved values are never ahead of what was on disk: otherwise a power failure
could take the outputs and leave the offsets.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.files.sealed_json import NotAsWritten, sealed, unsealed
from penstock.shared.next_steps import move_away

# group -> topic -> queue -> offset
Offsets = dict[str, dict[str, dict[int, int]]]


class SavedOffsets(msgspec.Struct, frozen=True):
    """All values from the records of OFFSETS_TOPIC below `queue_offset`.

    These lie below `log_offset`, and the log was on disk up to there.
    """

    queue_offset: int = 0
    log_offset: int = 0
    offsets: Offsets = {}
    # when each of the Spark writers' ledgers last moved, in ms since 1970
    ledgers: dict[str, int] = {}


_DECODER = msgspec.json.Decoder(SavedOffsets)


def load_offsets(file: Path) -> SavedOffsets:
    """What was saved; empty where there is no file. Raises StoreDamaged, OSError."""
    try:
        return unsealed(read_file(file), _DECODER)
    except FileNotFoundError:
        return SavedOffsets()
    except NotAsWritten as error:
        raise StoreDamaged(
            "the saved offsets of groups that work exactly once cannot be read",
            f"{error} ({file})",
            move_away(file),
        ) from error


def save_offsets(file: Path, encoded: bytes) -> None:
    """Replace the file with an encoded SavedOffsets; durable on return. Raises OSError."""
    replace_file(file, sealed(encoded))
