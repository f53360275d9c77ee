"""Where the broker's configuration comes from: flags over environment over file over default.

    flag          penstock up --produce-port 0, or --set key=value for any key
    environment   PENSTOCK_BROKER_<KEY>, in capital letters; for the store PENSTOCK_STORE, which
                  the other commands heed too
    file          --config FILE, TOML
    default       shared/config.py

Each key is known, or the error names the nearest one; every value says where it came from. This
file opens the configuration file and nothing else; the environment is passed in.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from penstock.shared.config import Config
from penstock.shared.config_rules import check_config
from penstock.shared.errors import ConfigError

ENVIRONMENT_PREFIX = "PENSTOCK_BROKER_"
STORE_VARIABLE, STORE_KEY = "PENSTOCK_STORE", "store_path_root_dir"
_FILE = "file "
_TYPES = get_type_hints(Config)
# key, value, and where it is from
_Setting = tuple[str, object, str]


class Loaded(NamedTuple):
    """A configuration, and for each key the place that its value is from."""

    config: Config
    origins: dict[str, str]


def load_config(
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """The configuration of a broker. Raises ConfigError, naming the place of what is wrong.

    `flags` maps keys to values; one that is None was not given.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Config.__struct_fields__, "default")
    layers = (
        (_from_file(file) if file else []),
        _from_environment(environment or {}),
        [(key, value, "flag") for key, value in given.items()],
    )
    for key, value, origin in chain.from_iterable(layers):
        check_known(key, origin)
        values[key] = _typed(key, value, origin)
        origins[key] = origin
    config = Config(**values)
    check_config(config)
    return Loaded(config, origins)


def default_store() -> str:
    """Where the commands look when --store is not given: $PENSTOCK_STORE, else ./store."""
    return os.environ.get(STORE_VARIABLE) or Config().store_path_root_dir


def parse_setting(text: str) -> tuple[str, str]:
    """`key=value` as a pair. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError("a setting has the form key=value", text, "as in max_queues=1000")
    return key, value


def _from_file(file: Path) -> list[_Setting]:
    try:
        found = tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise ConfigError("the configuration file can be read", error, "check --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is TOML", error, "correct that line") from None
    return [(key, value, f"{_FILE}{file}") for key, value in found.items()]


def _from_environment(environment: Mapping[str, str]) -> list[_Setting]:
    found: list[_Setting] = []
    if environment.get(STORE_VARIABLE):
        found.append((STORE_KEY, environment[STORE_VARIABLE], STORE_VARIABLE))
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            if key == STORE_KEY:
                raise ConfigError("the store has one variable", name, f"use {STORE_VARIABLE}")
            found.append((key, value, name))
    return found


def check_known(key: str, origin: str) -> None:
    """Raise ConfigError, with the nearest key that there is, for one that there is not."""
    if key in Config.__struct_fields__:
        return
    near = difflib.get_close_matches(key, Config.__struct_fields__, 1)
    hint = f"did you mean {near[0]}?" if near else "see configs/broker.toml for all keys"
    raise ConfigError(f"a known configuration key ({origin})", key, hint)


def _typed(key: str, value: object, origin: str) -> Any:
    """A value in its key's type. Text from a flag or the environment may stand for a number."""
    is_text = isinstance(value, str) and not origin.startswith(_FILE)
    try:
        return msgspec.convert(value, _TYPES[key], strict=not is_text)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{key} is a value of its type ({origin})",
            f"{value!r}: {error}",
            "see configs/broker.toml",
        ) from None
