"""A broker of its own for a measurement or a demonstration: started, used, and stopped in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire.introduction import ENDPOINT_OF

STOP_TIMEOUT_S = 300  # for 100,000 queues, whose files are all synced


class Stack(NamedTuple):
    """A running broker."""

    store: Path
    produce: str
    consume: str
    process: subprocess.Popen[str]
    endpoints: Mapping[str, str]


@contextmanager
def running_stack(
    store: Path | None, settings: Sequence[str] = (), flags: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """`penstock up` on a store, or on a temporary one that is removed afterwards.

    `settings` are TOML lines, `flags` are passed with --set.

    Raises StoreUnavailable if it does not come up, or does not stop cleanly.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-run-"))
    target = store or place / "store"
    try:
        config = place / "broker.toml"
        ports = [f"{name}_port = 0" for name in ENDPOINT_OF.values()]
        # Measurements speak Penstock's own protocol unless a flag says otherwise, and would include
        # the monitor's share.
        off = ("gateway_enable = false", "monitor_enable = false")
        config.write_text("\n".join((*ports, *off, *settings)) + "\n")
        command = [sys.executable, "-m", "penstock.cli.main", "up", "-o", "json"]
        command += [word for pair in (flags or {}).items() for word in ("--set", "=".join(pair))]
        process = subprocess.Popen(
            [*command, "--config", str(config), "--store", str(target)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            yield _await_ready(process, target)
        finally:
            code, said = _stop(process)
        if code != 0:
            raise StoreUnavailable(
                "the broker of this measurement did not stop in order", f"exit code {code}", said
            )
    finally:
        shutil.rmtree(place)


def _await_ready(process: subprocess.Popen[str], store: Path) -> Stack:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise StoreUnavailable(
            "the broker of this measurement did not start", process.stderr.read().strip()
        )
    ready: dict[str, Any] = msgspec.json.decode(line)
    endpoints = ready["endpoints"]
    return Stack(store, endpoints["produce"], endpoints["consume"], process, endpoints)


def _stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=STOP_TIMEOUT_S)
    return process.returncode, said.strip()
