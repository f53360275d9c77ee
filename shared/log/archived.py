"""penstock/archived.json: how much of the log an archive has, for the cleaner.

Whatever archives a store writes this file once an archive durably has all messages below a log
offset. With `expire_archived_only` a cleaner deletes only what lies below it. The file is replaced
as a whole, so any process may read it, even while a broker runs.
"""

from __future__ import annotations

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.files.sealed_json import NotAsWritten, sealed, unsealed
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """All messages of records below `log_offset` are in `archive`."""

    log_offset: int
    archive: str


_decoder: msgspec.json.Decoder[Archived] = msgspec.json.Decoder(Archived)


def load_archived(paths: StorePaths) -> Archived | None:
    """None where nothing was archived. Raises StoreDamaged, OSError."""
    try:
        return unsealed(read_file(paths.archived), _decoder)
    except FileNotFoundError:
        return None
    except NotAsWritten as error:
        raise StoreDamaged(
            "what says how much of the log is archived cannot be read",
            f"{paths.archived}: {error}",
            f"the next archive job writes it again: {move_away(paths.archived)}",
        ) from error


def save_archived(paths: StorePaths, archived: Archived) -> None:
    """Durable on return. Raises OSError."""
    replace_file(paths.archived, sealed(msgspec.json.format(msgspec.json.encode(archived))))
