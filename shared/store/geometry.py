"""The sizes that a store's files were made with, and how a configuration has to agree with them.

    STORE/penstock/geometry.json   {"mapped_file_size_commit_log_bytes": 16777216, ...}

A store's files fit together in one geometry only, and none of them states it. So a broker writes it
down before it makes the first of them, and whatever opens the store obeys it. For a store without
that file (RocketMQ's, an older Penstock's) geometry_search.py finds the sizes.

A size is binding as long as files of it exist; without them it may be set again. Only the holder of
the store's lock writes the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.shared.config import Config
from penstock.shared.config_rules import check_config
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import quoted, rebuild_index
from penstock.shared.store.geometry_search import (
    ITEMS,
    LOG,
    QUEUE,
    SLOTS,
    Looked,
    has_files,
    lengths_of,
    look_at_index,
    look_at_log,
    look_at_queues,
    named_to,
    queue_directories,
    segment_files,
)
from penstock.shared.store.lock import check_place

# RocketMQ's names for the keys; users of its stores look for these
KEYS = {
    LOG: "mappedFileSizeCommitLog",
    QUEUE: "mappedFileSizeConsumeQueue",
    SLOTS: "maxHashSlotNum",
    ITEMS: "maxIndexNum",
}
_INDEX = (SLOTS, ITEMS)
# the options of commands that read an index
_OPTIONS = {SLOTS: "--index-slots N", ITEMS: "--index-items N"}
REMEMBERED, FOUND, UNKNOWN = "penstock/geometry.json", "found in the files", "not known"


class Sizes(msgspec.Struct, frozen=True, omit_defaults=True):
    """penstock/geometry.json, by keys of the configuration. A size of 0 is not known, and is left
    out of the file. The first two are in bytes; the others count slots and items of an index file.
    """

    mapped_file_size_commit_log_bytes: int = 0
    mapped_file_size_consume_queue_bytes: int = 0
    max_hash_slot_num: int = 0
    max_index_num: int = 0


class Size(NamedTuple):
    """What a store says about one key; where it does not, 0 and the reason. `origin` is one of the
    three texts above, which `penstock store info` shows.
    """

    value: int
    origin: str
    why: str = ""


_decoder: msgspec.json.Decoder[Sizes] = msgspec.json.Decoder(Sizes)


def load_sizes(paths: StorePaths) -> Sizes:
    """The sizes in the file; all 0 where there is none. Raises StoreDamaged for another file,
    ConfigError where the store's own directory is a file, OSError.
    """
    try:
        sizes = _decoder.decode(read_file(paths.geometry))
        known = {key: value for key in KEYS if (value := getattr(sizes, key))}
        # A size that no configuration may have means that this file is damaged. The store does not
        # determine the largest message, whose default would need room in the pool.
        check_config(Config(**{**known, "max_message_size_bytes": 1}))
    except FileNotFoundError:
        return Sizes()
    except NotADirectoryError:
        check_place(paths.root)
        raise
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError, ConfigError) as error:
        raise StoreDamaged(
            f"{paths.geometry} does not hold the sizes of a store's files",
            error,
            f"without it they are found in the files: rm {quoted(paths.geometry)}",
        ) from None
    return sizes


def keep_sizes(paths: StorePaths, config: Config, *, index: bool = True) -> None:
    """Write down the sizes that files have from here on; durable on return. Without `index` those
    of the index are left out: it is just being changed, and then its files tell.

    The caller holds the store's lock, and has checked `config` against the existing files. Raises
    StoreDamaged, OSError.
    """
    known = {key: getattr(config, key) for key in KEYS if index or key not in _INDEX}
    sizes = Sizes(**known)
    # almost every start returns here, and costs no sync
    if paths.geometry.exists() and sizes == load_sizes(paths):
        return
    make_directory(paths.own)
    replace_file(paths.geometry, msgspec.json.format(msgspec.json.encode(sizes)))
    # A kill here may leave sizes without files. They bind nobody: `settled_sizes` looks for a file.
    crash_point("geometry.written")


def store_sizes(paths: StorePaths, asked: Mapping[str, int] | None = None) -> dict[str, Size]:
    """What the store says, by key. A key is left out if it has no file and no size is written down.

    `asked` is what the user says of index files, which helps the search. The search goes through
    directories, and maps index files. Sizes that are written down are not checked here: see
    `check_lengths`. Raises StoreDamaged, OSError.
    """
    sizes = load_sizes(paths)
    looked: dict[str, Looked | None] = {}
    if not sizes.mapped_file_size_commit_log_bytes:
        looked[LOG] = look_at_log(paths)
    if not sizes.mapped_file_size_consume_queue_bytes:
        looked[QUEUE] = look_at_queues(paths)
    # slots and items are found together, so having only one of them is not enough
    if not (sizes.max_hash_slot_num and sizes.max_index_num):
        looked |= dict.fromkeys(_INDEX) | look_at_index(paths, asked or {})
    found = {}
    for key in KEYS:
        if key not in looked:
            found[key] = Size(getattr(sizes, key), REMEMBERED)
        # None: there is no file of this kind, so any size will do, and the key is left out
        elif (seen := looked[key]) is not None:
            found[key] = Size(seen.value, FOUND if seen.value else UNKNOWN, seen.why)
    return found


def settled_sizes(
    root: Path, given: Mapping[str, Any], origins: Mapping[str, str], *, index: bool = True
) -> dict[str, int]:
    """The values that a configuration has to have for the store at `root`, for `load_config`.

    `given` has the values so far, and `origins` says, for an error, where each is from. Without
    `index`, the index is about to be made again, in any size that is asked for. Raises ConfigError
    where another value was given, or one is needed; StoreDamaged, OSError.
    """
    paths = StorePaths(root)
    asked = {key: given[key] for key in KEYS if key in given}
    settled = {}
    for key, size in store_sizes(paths, asked).items():
        # these files are about to go; if no size is asked for the old one stays, if it is known
        if not index and key in _INDEX and (key in asked or not size.value):
            continue
        if not size.value:
            # The default would be a guess, and a start that guesses wrong takes whole files for
            # damaged. The user's word is believed, as there is nothing to compare it with.
            if key not in asked:
                raise _unknown(key, size, paths)
        elif asked.get(key, size.value) == size.value:
            settled[key] = size.value
        # without a file the given value counts, and `keep_sizes` writes it down
        elif has_files(paths, key):
            raise _other(key, size.value, asked[key], origins[key], paths)
    return settled


def index_sizes(paths: StorePaths, slots: int | None = None, items: int | None = None) -> Geometry:
    """The geometry of a store's index, for commands that read it. A given number counts unchecked.

    Raises ConfigError where it is not known, StoreDamaged, OSError.
    """
    asked = {key: given for key, given in ((SLOTS, slots), (ITEMS, items)) if given is not None}
    # with both given there is no search, which may go through an index file, by default 420 MB
    found = store_sizes(paths, asked) if len(asked) < len(_INDEX) else {}
    values = []
    for key in _INDEX:
        # without an index file any geometry will do, so the default does
        size = found.get(key, Size(getattr(Config(), key), REMEMBERED))
        if key not in asked and not size.value:
            raise _unknown(key, size, paths, _OPTIONS[key])
        values.append(asked.get(key, size.value))
    return Geometry(*values)


# for commands that make the index again
settled_but_index = partial(settled_sizes, index=False)


def check_sizes(paths: StorePaths, config: Config) -> None:
    """Raise ConfigError for a configuration with other sizes than the store's files.

    A Config does not tell which values were asked for and which are defaults, so each counts as
    asked for. `load_config` has checked this without the lock; here the lock makes it final.
    Raises StoreDamaged, OSError.
    """
    given = {key: getattr(config, key) for key in KEYS}
    settled_sizes(paths.root, given, dict.fromkeys(KEYS, "the configuration"))


def check_lengths(paths: StorePaths, config: Config) -> None:
    """Raise an error for a size that no file has, if several files agree on another length:
    StoreDamaged where the size is the store's own, else ConfigError.

    For before a repair or a rebuild, and for a start that meets a file that does not fit. With a
    wrong size all files look damaged, while it is the size that has to be corrected. It may be
    another store's, whose geometry.json was copied.
    """
    for key, places in ((LOG, [paths.commit_log]), (QUEUE, [*queue_directories(paths)])):
        size, lengths = getattr(config, key), lengths_of(places)
        # one file of the right length is enough
        if not lengths or lengths[size]:
            continue
        ((length, count),) = lengths.most_common(1)
        # A length that occurs once does not refute the size: that file may have been cut, or have
        # grown. But then its name would still be a multiple of the size, and no queue would name a
        # message in what was added.
        if count == 1:
            length = _length_by_place(places, size)
            if not length and key == LOG:
                length = _length_by_queues(paths, size)
            if not length:
                continue
        if getattr(load_sizes(paths), key) == size:
            raise StoreDamaged(
                f"{paths.geometry} is not of this store",
                f"{key} is {size} there, and no file has that; files of {length} bytes: {count}",
                f"without it the sizes are found in the files: rm {quoted(paths.geometry)}",
            )
        raise _other(key, length, size, "the configuration", paths)


def _length_by_place(directories: Iterable[Path], size: int) -> int:
    """The length of a file whose name is a multiple of it but not of `size`; 0 without one."""
    for path in (path for each in directories for path in segment_files(each)):
        base, length = int(path.name), path.stat().st_size
        if length and base % size and not base % length:
            return length
    return 0


def _length_by_queues(paths: StorePaths, size: int) -> int:
    """The length of a log file in which queues name messages past `size`; 0 without one."""
    end = named_to(paths)
    for path in segment_files(paths.commit_log):
        base, length = int(path.name), path.stat().st_size
        if base + size < end <= base + length:
            return length
    return 0


def _other(key: str, value: int, asked: int, origin: str, paths: StorePaths) -> ConfigError:
    """The error for a size that differs from the store's. The hint says where to undo the wish."""
    hint = f"leave {key} out, and the store's own counts"
    if origin.startswith("file "):
        hint = f"take {key} out of {origin.removeprefix('file ')}, and the store's own counts"
    # only the origin that is a variable's name is all upper case
    elif origin.isupper():
        hint = f"unset {origin}, and the store's own counts"
    if key in _INDEX:
        again = f"{rebuild_index(paths.root)} --set {key}={asked}"
        hint += f"; to have another one, make the index anew: {again}"
    return ConfigError(
        f"the store's files were made with another {key}",
        f"{paths.root} has {value}, and {asked} is asked for ({origin})",
        hint,
    )


def _unknown(key: str, size: Size, paths: StorePaths, option: str = "") -> ConfigError:
    """The error where nothing in the store tells the key's value, which `option` gives."""
    hint = (
        f"give the value that it was made with: {option or f'--set {key}=N'}; a RocketMQ's is "
        f"{KEYS[key]} in its broker.conf, by default {getattr(Config(), key)}"
    )
    if key in _INDEX:
        hint += f"; or make the index anew: {rebuild_index(paths.root)}"
    return ConfigError(f"the store's {key} is not known", f"{paths.root}: {size.why}", hint)
