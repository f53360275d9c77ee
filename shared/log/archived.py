"""penstock/archived.json: how much of the log an archive has, for the cleaner.

Whoever archives a store writes it when an archive has all messages below a log offset, durably. A
cleaner with `expire_archived_only` lets nothing go that is not below it. The file is replaced as a
whole, so any process may read it, while a broker runs too.
"""

from __future__ import annotations

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.descriptors import read_file
from penstock.shared.files.durable import replace_file
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
        return _decoder.decode(read_file(paths.archived))
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreDamaged(
            "what says how much of the log is archived cannot be read",
            f"{paths.archived}: {error}",
            f"the next archive job writes it again: {move_away(paths.archived)}",
        ) from error


def save_archived(paths: StorePaths, archived: Archived) -> None:
    """Durable on return. Raises OSError."""
    replace_file(paths.archived, msgspec.json.format(msgspec.json.encode(archived)))
