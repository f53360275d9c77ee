"""The configuration that a run was started with, for commands that look at the run from outside.

    <run directory>/settings    the Config as JSON; the supervisor writes it, once

It includes flags and environment of the broker's process, which no other process can know. A start
must not need it: it goes with the run.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.shared.config import Config
from penstock.shared.memory.run_directory import Run


def keep_settings(run: Run, config: Config) -> None:
    """For this user only, like all of the run directory. Raises OSError."""
    handle = os.open(_file(run), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as file:
        file.write(msgspec.json.encode(config))


_decoder: msgspec.json.Decoder[Config] = msgspec.json.Decoder(Config)


def settings_of(run: Run, store: Path) -> Config:
    """What the broker on this store runs with. Raises OSError where the run has just ended."""
    found = _decoder.decode(_file(run).read_bytes())
    # a relative path would count from where the broker was started
    return msgspec.structs.replace(found, store_path_root_dir=str(store))


def _file(run: Run) -> Path:
    return run.path / "settings"
