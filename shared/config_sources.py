"""Where the broker's configuration comes from: flags over environment over file over default.

    flag          penstock up --produce-port 0, or --set key=value for any key
    environment   PENSTOCK_BROKER_<KEY>, in capital letters; for the store PENSTOCK_STORE, which
                  the other commands use, too
    file          --config FILE, TOML
    default       shared/config.py

A number may have underscores. Where a value is text (a flag, the environment, a TOML string), it
may have a unit that fits its key: B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of
1024) if the key ends in _bytes; ms, s, m, h, d if in _ms or _h; % if in _percent.

An unknown key is an error that names the nearest known one: if a misspelt key were ignored, its
default would silently stay in force. Every value remembers where it came from, so that an error and
`penstock config show` can say so.

This file opens the configuration file and nothing else. The environment is passed in, because tests
and embedded brokers must not depend on the one of their process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from penstock.shared.config import Config
from penstock.shared.config_rules import check_config, default_of
from penstock.shared.errors import ConfigError
from penstock.shared.next_steps import nearest

ENVIRONMENT_PREFIX = "PENSTOCK_BROKER_"
STORE_VARIABLE, STORE_KEY = "PENSTOCK_STORE", "store_path_root_dir"
# The origin of a value from the file begins with this. A file has types, so its values are not
# converted from text, except for units.
_FILE = "file "
_TYPES = get_type_hints(Config)
_AMOUNT = re.compile(r"(\d+(?:_\d+)*)(\.\d+)? ?([A-Za-z%]*)", re.ASCII)
_PREFIXES = tuple(enumerate("KMGT", 1))
_BYTES = (
    {"B": 1}
    | {f"{letter}B": 1000**power for power, letter in _PREFIXES}
    | {f"{letter}iB": 1024**power for power, letter in _PREFIXES}
)
# The largest time and size. In ms that is 35,000 years. Sums of a few of them still fit into 64-bit
# words of shared memory, so later additions need not check for overflow.
_MOST = 1 << 50
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# a key's ending -> the units of its text, and how many of their base units make one of the key's
_UNITS: dict[str, tuple[dict[str, int], int]] = {
    "_bytes": (_BYTES, 1),
    "_ms": (_MS, 1),
    "_h": (_MS, _MS["h"]),
    "_percent": ({"%": 1}, 1),
}
HeedStore = Callable[[Path, Mapping[str, Any], Mapping[str, str]], Mapping[str, int]]
# key, value, and origin
_Setting = tuple[str, object, str]


class Loaded(NamedTuple):
    """A configuration, and for each key the origin of its value."""

    config: Config
    origins: dict[str, str]


def load_config(
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    heed_store: HeedStore | None = None,
) -> Loaded:
    """The configuration of a broker. Raises ConfigError, naming the place of what is wrong.

    `flags` maps keys to values; None means that the flag was not given. `heed_store` is called
    last, with the store's directory, the values so far and their origins: an existing store's files
    determine their sizes, instead of a default.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Config.__struct_fields__, "default")
    layers = (
        (_from_file(file) if file else []),
        _from_environment(environment or {}),
        [(key, value, "flag") for key, value in given.items()],
    )
    # a later layer overwrites an earlier one, but each value is checked even if it is overwritten:
    # otherwise a wrong line in the file would stay hidden until the flag is left out
    for key, value, origin in chain.from_iterable(layers):
        check_known(key, origin)
        values[key] = _typed(key, value, origin)
        origins[key] = origin
    if heed_store:
        # the store's directory may itself be configured, so the store cannot be one more layer
        root = Config(store_path_root_dir=values.get(STORE_KEY, Config().store_path_root_dir)).store
        settled = heed_store(root, values, origins)
        values |= settled
        # a value that was given, and that the store has too, keeps its own origin
        origins |= {key: "store" for key in settled if origins[key] == "default"}
    config = Config(**values)
    # Last, because rules compare keys with each other: the pool need not have room for a frame that
    # only a segment of the default size could hold.
    check_config(config)
    return Loaded(config, origins)


def default_store() -> str:
    """Where the commands look when --store is not given: $PENSTOCK_STORE, else ./store.

    The only function here that reads the environment of its process: it is a command's default.
    """
    # `or`, not a default of `get`: a variable that is set to nothing counts as not set
    return os.environ.get(STORE_VARIABLE) or Config().store_path_root_dir


def parse_setting(text: str) -> tuple[str, str]:
    """`key=value` as a pair. Raises ConfigError for another form.

    The first `=` counts, so the value may contain more. `load_config` checks whether the key
    exists, as it knows the origin.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(
            "this is no setting of the form key=value", text, "write it as in max_queues=1000"
        )
    return key, value


def _from_file(file: Path) -> list[_Setting]:
    """The settings in a TOML file. A table counts as a value, which no key accepts."""
    import tomllib  # here, as most starts have no file

    try:
        found = tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise ConfigError(
            "the configuration file cannot be read",
            error,
            "name one that is there with --config FILE; penstock config show prints every key",
        ) from None
    # arrays of unlimited depth raise RecursionError
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            "the configuration file is not TOML", f"{file}: {error}", "correct that line"
        ) from None
    return [(key, value, f"{_FILE}{file}") for key, value in found.items()]


def _from_environment(environment: Mapping[str, str]) -> list[_Setting]:
    """The settings in the environment; Penstock's other variables are ignored."""
    found: list[_Setting] = []
    if environment.get(STORE_VARIABLE):
        found.append((STORE_KEY, environment[STORE_VARIABLE], STORE_VARIABLE))
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            # all of a container's programs share its variables; still, a wrong key there is an
            # error, as in the file
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            # two variables for one value could contradict each other
            if key == STORE_KEY:
                raise ConfigError(
                    "the store's directory has another variable",
                    name,
                    f"set {STORE_VARIABLE} instead",
                )
            found.append((key, value, name))
    return found


def check_known(key: str, origin: str) -> None:
    """Raise ConfigError, which names the nearest key, if this key does not exist. `origin` is where
    it was set, as the error shows it.
    """
    if key in Config.__struct_fields__:
        return
    near = nearest(key, Config.__struct_fields__)
    asked = f"Did you mean {near[0]}? " if near else ""
    hint = f"{asked}All keys: penstock config show"
    raise ConfigError(f"there is no such configuration key ({origin})", key, hint)


def duration_ms(text: str) -> float | None:
    """A duration with a unit, as ms: "500ms", "1.5s", "2m"; None for any other text."""
    return _amount(text, _MS)


def _amount(text: str, units: Mapping[str, int]) -> float | None:
    """A number with one of these units; None for any other text. An int if there is no fraction."""
    found = _AMOUNT.fullmatch(text)
    if found is None or found[3] not in units:
        return None
    if found[2] is None:
        return int(found[1]) * units[found[3]]
    return float(found[1] + found[2]) * units[found[3]]


def _without_unit(key: str, text: str, bare: bool) -> object:
    """The number that a text means for this key, or the text itself if it means none.

    A number without a unit is accepted only if `bare`: in a TOML file it would be a string where
    the user could have written a number, which is probably a mistake.
    """
    if _TYPES[key] is not int:
        return text
    for ending, (units, one) in _UNITS.items():
        if key.endswith(ending) and (amount := _amount(text, units)) is not None:
            # "90m" for a key in hours is refused and not rounded: 1 h is not what was asked for
            whole, rest = divmod(amount, one)
            return text if rest else int(whole)
    return int(text) if bare and re.fullmatch(r"[+-]?\d+(_\d+)*", text, re.ASCII) else text


def _typed(key: str, value: object, origin: str) -> Any:
    """A value in its key's type.

    Text may stand for a number; in flags and variables, which are always text, also for a bool.
    """
    is_text = isinstance(value, str) and not origin.startswith(_FILE)
    given = _without_unit(key, value, is_text) if isinstance(value, str) else value
    try:
        made = msgspec.convert(given, _TYPES[key], strict=not is_text)
        # `type`, because a bool is an int too
        if type(made) is int and abs(made) > _MOST:
            raise msgspec.ValidationError
        return made
    except msgspec.ValidationError:
        raise ConfigError(
            f"the value of {key} cannot be read ({origin})",
            repr(value),
            f"it may be {_taken(key)}; {default_of(key)}",
        ) from None


def _taken(key: str) -> str:
    """The values that a key accepts, in words."""
    kind = _TYPES[key]
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    if kind is not int:
        return "text"
    for ending, (units, one) in _UNITS.items():
        if key.endswith(ending):
            whole = ", in whole hours" if one > 1 else ""
            return f"a whole number, or one with a unit{whole}: {', '.join(units)}"
    return "a whole number"
