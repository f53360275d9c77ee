"""`penstock up`: a broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.endpoints import served
from penstock.cli.option_types import PORT
from penstock.cli.output import few, output_option, print_json
from penstock.cli.settings import config_option, set_option
from penstock.cli.streams import OutputFailed
from penstock.shared.errors import PortTaken, StoreDamaged
from penstock.shared.layout import StorePaths

if TYPE_CHECKING:
    from penstock.shared.config import Config
    from penstock.shared.recovery.recover_log import Recovered
    from penstock.supervisor import Supervisor

_PORTS = ("produce_port", "consume_port", "group_port", "transaction_port")
_GATEWAY_PORTS = ("gateway_name_server_port", "gateway_port")


@click.command(
    epilog="""\b
Examples:
  penstock up --store ./store
  penstock up --config broker.toml
  penstock up --store ./other --port auto         any free ports, printed when ready
  penstock up --set flush_disk_type=async         any key of penstock config show
  penstock up --set transient_store_pool_bytes=64MiB
"""
)
@config_option
@set_option
@click.option("--store", type=click.Path(path_type=Path), help="The store directory; made if new.")
@click.option("--port", type=click.Choice(["auto"]), help="Take any free ports, for all.")
@click.option(
    "--produce-port", type=PORT, help="The producers' port; 0: any free one.  [default: 20911]"
)
@click.option(
    "--consume-port", type=PORT, help="The consumers' port; 0: any free one.  [default: 20912]"
)
@click.option(
    "--group-port", type=PORT, help="The groups' port; 0: any free one.  [default: 20913]"
)
@click.option(
    "--transaction-port",
    type=PORT,
    help="The transactions' port; 0: any free one.  [default: 20914]",
)
@output_option
def up(
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    store: Path | None,
    port: str | None,
    output: str,
    **ports: int | None,
) -> None:
    """Start a broker and watch over its actors.

    A store that is there keeps the sizes its files were made with, whatever the defaults are now.

    Stays in the foreground. Prints one line that begins with "ready" once it serves, with the
    endpoints that clients connect to; stop it with Ctrl-C. Where the disk has no room for messages
    the line begins with "full" and says why: consumers are served, producers refused. Another
    "ready" follows when there is room, and another "full" when there is none any more.
    What happens meanwhile is told on standard error, each line with its time in UTC.
    """
    from penstock.shared.config_sources import load_config
    from penstock.shared.store.geometry import settled_sizes
    from penstock.supervisor import Supervisor

    if port:  # some of them may be named all the same
        ports = {key: ports[key] or 0 for key in _PORTS}
        settings = (*((key, "0") for key in _GATEWAY_PORTS), *settings)
    flags = dict(settings) | _given(store, ports)
    config = load_config(file, flags, os.environ, settled_sizes).config
    supervisor = Supervisor(config, report=_line)
    try:
        supervisor.open()
    except PortTaken as error:
        again = _with_free_ports(file, settings, config.store)
        hint = f"stop that one, or take any free ports: {again}"
        raise PortTaken(error.what, error.value, hint) from None
    _report_recovery(supervisor.store.recovered, supervisor.store.paths.root)
    try:
        if supervisor.wait_ready():
            supervisor.run(_states(supervisor, config, output))
    except BaseException:
        supervisor.kill()
        _line("the actors were killed; the next start recovers")
        raise
    _line("stopping")
    damaged = bool(supervisor.store.recovered.quarantined)
    if supervisor.stop():
        _line("stopped; the store is clean")
    elif damaged:
        _line("stopped; the store is as it was, damaged")
        raise click.exceptions.Exit(StoreDamaged.exit_code)
    else:
        _line("stopped, but not everything was on disk; the next start recovers")
        raise click.exceptions.Exit(1)


def _given(store: Path | None, ports: dict[str, int | None]) -> dict[str, str | int]:
    """The keys that have options of their own, where these are given."""
    from penstock.shared.config_sources import STORE_KEY

    values = {STORE_KEY: None if store is None else str(store), **ports}
    return {key: value for key, value in values.items() if value is not None}


def _with_free_ports(file: Path | None, settings: tuple[tuple[str, str], ...], store: Path) -> str:
    """The same command once more, with any free ports."""
    words = ["penstock", "up"]
    words += ["--config", str(file)] if file else []
    for key, value in settings:
        words += ["--set", f"{key}={value}"] if key not in (*_PORTS, *_GATEWAY_PORTS) else []
    return shlex.join([*words, "--store", str(store), "--port", "auto"])


def _line(line: str) -> None:
    """A line on standard error, with its time."""
    from penstock.shared.clock import SystemClock
    from penstock.shared.process.log_line import log_line

    log_line(SystemClock().now_ms(), "supervisor", line)


def _states(supervisor: Supervisor, config: Config, output: str) -> Callable[[], None]:
    """What prints a line whenever messages begin to be taken, or to be refused for want of disk."""
    from penstock.shared.process.disk_full import why_full

    last: str | None = None

    def look() -> None:
        nonlocal last
        full = why_full(supervisor.store.positions, supervisor.store.paths, config)
        if last is None or bool(full) != bool(last):
            with ExitStack() as stack:
                if last is not None:  # the reader of the first line may have gone
                    stack.enter_context(suppress(OSError, OutputFailed))
                _report_state(supervisor, output, full)
        last = full

    return look


def _report_state(supervisor: Supervisor, output: str, full: str) -> None:
    endpoints, store = supervisor.store.run.endpoints, supervisor.store.paths.root
    damaged = bool(supervisor.store.recovered.quarantined)
    if output == "json":
        row = {"ready": not full, "store": str(store), "endpoints": endpoints}
        print_json(row | {"read_only": damaged, "full": full})
    else:
        click.echo(
            ("full" if full else "ready")
            + "".join(f" {name}={at}" for name, at in served(endpoints).items())
            + f" store={store}"
            + (" read-only=damaged" if damaged else "")
            + (f" no message is taken: {full}" if full else "")
        )
    sys.stdout.flush()


def _report_recovery(recovered: Recovered, store: Path) -> None:
    """Say what was found after an unclean stop, what was cut, and what is damaged."""
    if recovered.mode == "unclean":
        _line(
            f"recovered after an unclean stop: {recovered.messages} messages scanned from "
            f"{recovered.scanned_from}, {recovered.pool_bytes} bytes taken from the pool, "
            f"{recovered.torn_bytes} torn bytes cut, log ends at {recovered.log_end}, "
            f"{recovered.seconds:.2f} s"
        )
    elif recovered.torn_bytes:
        _line(
            f"{recovered.torn_bytes} bytes behind the log's end, which is {recovered.log_end}, "
            "were no messages and are cut, although the last stop was in order"
        )
    if recovered.torn_records:
        _line(
            f"{recovered.torn_records} whole records were behind bytes that are lost, so they are "
            f"no part of the log any more; they are kept in {StorePaths(store).quarantine}"
        )
    for line in few(f"damaged: {damage}" for damage in recovered.quarantined):
        _line(line)
    if recovered.quarantined:
        _line(
            "the store is read-only: consumers get everything that is whole, producers nothing; "
            f"stop the broker and run: penstock store repair {store}"
        )
