"""`penstock up`: a broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import output_option, print_json
from penstock.cli.settings import config_option, set_option
from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import StorePaths

if TYPE_CHECKING:
    from penstock.shared.config import Config
    from penstock.shared.recovery import Recovered
    from penstock.supervisor import Supervisor


@click.command(
    epilog="""\b
Examples:
  penstock up --store ./store
  penstock up --config configs/broker.toml
  penstock up --produce-port 0 --consume-port 0   any free ports, printed when ready
  penstock up --set flush_disk_type=async         any key of configs/broker.toml
"""
)
@config_option
@set_option
@click.option("--store", type=click.Path(path_type=Path), help="The store directory; made if new.")
@click.option("--produce-port", type=int, help="The producers' port; 0 takes any free one.")
@click.option("--consume-port", type=int, help="The consumers' port; 0 takes any free one.")
@output_option
def up(
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    store: Path | None,
    produce_port: int | None,
    consume_port: int | None,
    output: str,
) -> None:
    """Start a broker and watch over its actors.

    Stays in the foreground. Prints one line that begins with "ready" once it serves, with the
    endpoints that clients connect to; stop it with Ctrl-C. Where the disk has no room for messages
    the line begins with "full" and says why: consumers are served, producers refused. Another
    "ready" follows when there is room, and another "full" when there is none any more.
    """
    from penstock.shared.config_sources import load_config
    from penstock.supervisor import Supervisor

    flags = dict(settings) | {
        key: value
        for key, value in (
            ("store_path_root_dir", None if store is None else str(store)),
            ("produce_port", produce_port),
            ("consume_port", consume_port),
        )
        if value is not None
    }
    config = load_config(file, flags, os.environ).config
    supervisor = Supervisor(config, say=_say)
    supervisor.open()
    _report(supervisor.store.recovered, supervisor.store.paths.root)
    try:
        if supervisor.wait_ready():
            supervisor.run(_states(supervisor, config, output))
    except BaseException:
        supervisor.kill()
        raise
    _say("stopping")
    damaged = bool(supervisor.store.recovered.quarantined)
    if supervisor.stop():
        _say("stopped; the store is clean")
    elif damaged:
        _say("stopped; the store is as it was, damaged")
        raise click.exceptions.Exit(StoreDamaged.exit_code)
    else:
        _say("stopped, but not everything was on disk; the next start recovers")
        raise click.exceptions.Exit(1)


def _say(line: str) -> None:
    """Tell whoever watches, if it can be done: that may be a file on a full disk."""
    with suppress(OSError):
        click.echo(line, err=True)


def _states(supervisor: Supervisor, config: Config, output: str) -> Callable[[], None]:
    """What prints a line whenever messages begin to be taken, or to be refused for want of disk."""
    from penstock.shared.store_state import why_full

    last: str | None = None

    def look() -> None:
        nonlocal last
        full = why_full(supervisor.store.positions, supervisor.store.paths, config)
        if last is None or bool(full) != bool(last):
            with ExitStack() as stack:
                if last is not None:  # who read the first line may have gone
                    stack.enter_context(suppress(OSError))
                _say_state(supervisor, output, full)
        last = full

    return look


def _say_state(supervisor: Supervisor, output: str, full: str) -> None:
    endpoints, store = supervisor.store.run.endpoints, supervisor.store.paths.root
    damaged = bool(supervisor.store.recovered.quarantined)
    if output == "json":
        row = {"ready": not full, "store": str(store), "endpoints": endpoints}
        print_json(row | {"read_only": damaged, "full": full})
    else:
        click.echo(
            ("full" if full else "ready")
            + f" produce={endpoints.produce} consume={endpoints.consume} store={store}"
            + (" read-only=damaged" if damaged else "")
            + (f" no message is taken: {full}" if full else "")
        )
    sys.stdout.flush()


def _report(recovered: Recovered, store: Path) -> None:
    """Say what was found after an unclean stop, what was cut, and what is damaged."""
    if recovered.mode == "unclean":
        _say(
            f"recovered after an unclean stop: {recovered.messages} messages scanned from "
            f"{recovered.scanned_from}, {recovered.pool_bytes} bytes taken from the pool, "
            f"{recovered.torn_bytes} torn bytes cut, log ends at {recovered.log_end}, "
            f"{recovered.seconds:.2f} s"
        )
    elif recovered.torn_bytes:
        _say(
            f"{recovered.torn_bytes} bytes behind the log's end, which is {recovered.log_end}, "
            "were no messages and are cut, although the last stop was in order"
        )
    if recovered.torn_records:
        _say(
            f"{recovered.torn_records} whole records were behind bytes that are lost, so they are "
            f"no part of the log any more; they are kept in {StorePaths(store).quarantine}"
        )
    for damage in recovered.quarantined:
        _say(f"damaged: {damage}")
    if recovered.quarantined:
        _say(
            "the store is read-only: consumers get everything that is whole, producers nothing; "
            f"stop the broker and run: penstock store repair {store}"
        )
