"""What the timers' files held when that was noted last: penstock/timer-sums.

    {"indexed": 17, "files": {"29931234": [240, 1234567], "498876h": [48, 99]}}

`indexed` is the offset below which the wheel queue's timers are in the files, and of each file
there is how many bytes that were, and their CRC-32. Nobody reads the queue again below that offset.
So a file that is gone, was cut or has other bytes would take timers with it without a word: a run
begins with a comparison, and where something is missing all files are made again from the queue.

What was appended since is not noted, and a file goes when its time is over. A note that is lost, or
nonsense, costs that the files are made again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file

# Of each file by name: bytes and their checksum.
Sums = dict[str, tuple[int, int]]


class FileSums(msgspec.Struct, frozen=True):
    """The note."""

    indexed: int = 0
    files: Sums = {}


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FileSums)


def load_sums(file: Path) -> FileSums:
    """Nothing where there is no note, or something else in its place."""
    try:
        return _decoder.decode(read_file(file))
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return FileSums()


def save_sums(file: Path, sums: FileSums) -> None:
    """Durable on return. Raises OSError."""
    make_directory(file.parent)
    replace_file(file, _encode(sums))
