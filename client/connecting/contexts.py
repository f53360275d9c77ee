"""Saved contexts: brokers by name, in a file of the user's.

    $XDG_CONFIG_HOME/penstock/contexts.json    ~/.config if it is not set; %APPDATA% on Windows

Only the user can read the file (0600). It is replaced as a whole, so that a reader never sees half
of one. This works on every system that a client runs on.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.shared.errors import ConfigError, InvalidArgument
from penstock.shared.next_steps import did_you_mean, quoted

# The context of this name means: no saved one, and no search for a broker on this machine.
NONE = "none"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker, by endpoint or by store."""

    endpoint: str = ""
    store: str = ""


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """All saved contexts, and the one that is used by default; "" for none."""

    current: str = ""
    contexts: dict[str, Context] = {}


def contexts_file() -> Path:
    """The file in which they are saved."""
    home = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME")
    # not Path.home(): that raises for a user without a home
    return Path(home or os.path.expanduser("~/.config")) / "penstock" / "contexts.json"


_decoder: msgspec.json.Decoder[Contexts] = msgspec.json.Decoder(Contexts)


def load_contexts(file: Path) -> Contexts:
    """What is saved. Raises ConfigError for a file that cannot be read."""
    try:
        return _decoder.decode(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "the file of saved contexts cannot be read",
            f"{file}: {error}",
            f"move it away, and add them again: mv {quoted(file)} {quoted(file)}.broken",
        ) from error


def save_contexts(file: Path, saved: Contexts) -> None:
    """Replace the file, without a sync, as it can be typed again. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    growing = file.with_name(f"{file.name}.{os.getpid()}")
    handle = os.open(growing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(handle, "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
        growing.replace(file)
    except BaseException:
        with suppress(FileNotFoundError):
            growing.unlink()
        raise


def check_name(name: str) -> str:
    """The name, if a context can have it. Raises InvalidArgument."""
    if name == NONE or not _NAME.fullmatch(name):
        raise InvalidArgument(
            "no context can have this name",
            repr(name)[:80],
            f'use up to 64 letters, digits, ".", "_" and "-"; "{NONE}" stands for no context',
        )
    return name


def find_context(saved: Contexts, name: str) -> Context:
    """The context of this name. Raises InvalidArgument if there is none."""
    found = saved.contexts.get(name)
    if found is None:
        hint = f"{did_you_mean(name, saved.contexts)}. See them: penstock context ls"
        raise InvalidArgument("there is no context of this name", repr(name)[:80], hint)
    return found
