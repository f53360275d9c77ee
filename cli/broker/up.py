"""`penstock up`: a broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.endpoints import served
from penstock.cli.options.option_types import PORT
from penstock.cli.options.settings import config_option, set_option
from penstock.cli.printing.output import json_line, line_option
from penstock.cli.streams import OutputFailed
from penstock.shared.errors import PenstockError, PortTaken, StoreDamaged
from penstock.shared.linux import check_linux

if TYPE_CHECKING:
    from penstock.cli.broker.service_manager import ServiceManager
    from penstock.shared.config import Config
    from penstock.supervisor import Supervisor

_PORTS = ("produce_port", "consume_port", "group_port", "transaction_port")
# ports that have no options of their own
_OTHER_PORTS = ("gateway_name_server_port", "gateway_port", "monitor_port")


@click.command(
    epilog="""\b
Examples:
  penstock up --store ./store
  penstock up --store ./store --log json          one object for each line
  penstock up --config broker.toml
  penstock up --store ./other --port auto         any free ports, printed when ready
  penstock up --store ./store --daemon            in the background: penstock down, logs
  penstock up --set flush_disk_type=async         any key of penstock config show
  penstock up --register 10.0.0.5:9876 --set broker_ip=10.0.0.9
  penstock up --set gateway_enable=false          not for clients of RocketMQ
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
@click.option(
    "--register",
    "name_servers",
    multiple=True,
    metavar="HOST:PORT",
    help="A RocketMQ name server to register with; may be repeated.",
)
@click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    help="How lines on standard error are written.  [default: $PENSTOCK_LOG, or text]",
)
@click.option("--daemon", is_flag=True, help="Serve in the background; return when it does.")
@line_option
def up(
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    store: Path | None,
    port: str | None,
    name_servers: tuple[str, ...],
    log: str | None,
    daemon: bool,
    output: str,
    **ports: int | None,
) -> None:
    """Start a broker and watch over its actors.

    The store is the one that is named: by --store, PENSTOCK_STORE or --config; else that of the
    context in use, where it has one (penstock context show), or ./store. One that is there keeps
    the sizes its files were made with, whatever the defaults are now.

    Stays in the foreground, unless it is told --daemon. Prints one line that begins with "ready"
    once it serves, with the endpoints that its clients connect to, and RocketMQ's; stop it with
    Ctrl-C. Where the disk has no room for messages the line begins with "full" and says why:
    consumers are served, producers refused. Another "ready" follows when there is room, and
    another "full" when there is none any more.
    What happens meanwhile is told on standard error, each line with its time in UTC; with --daemon
    `penstock logs` shows it, and `penstock down` stops the broker. systemd is told what it wants to
    know of a service of Type=notify.
    """
    check_linux("a broker")
    from penstock.shared.process.log_line import LOG_VARIABLE

    if log:
        os.environ[LOG_VARIABLE] = log  # all processes of the broker inherit it
    if port:  # individual ports may still be named
        ports = {key: ports[key] or 0 for key in _PORTS}
        settings = (*((key, "0") for key in _OTHER_PORTS), *settings)
    settings = (*_registering(name_servers), *settings)
    with _error_as_line(output):
        _run(file, settings, store, ports, daemon, output)


def _run(
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    store: Path | None,
    ports: dict[str, int | None],
    daemon: bool,
    output: str,
) -> None:
    gc.disable()  # imports are faster without it, as in actors
    from penstock.cli.broker.daemon import go_on_in_background
    from penstock.shared.config_sources import STORE_KEY, load_config
    from penstock.shared.layout import StorePaths
    from penstock.shared.store.geometry import settled_sizes
    from penstock.supervisor import Supervisor

    gc.enable()
    flags = dict(settings) | _given(store, ports)
    config, origins = load_config(file, flags, os.environ, settled_sizes)
    if origins[STORE_KEY] == "default" and (saved := _saved_store()):
        flags |= {STORE_KEY: str(saved)}
        config = load_config(file, flags, os.environ, settled_sizes).config
    if daemon:
        go_on_in_background(StorePaths(config.store))
    supervisor = Supervisor(config, report=_line)
    try:
        supervisor.open()
    except PortTaken as error:
        hint = _without_that_port(error, file, settings, config.store)
        raise PortTaken(error.what, error.value, hint) from None
    _serve(supervisor, config, output, daemon)


def _serve(supervisor: Supervisor, config: Config, output: str, daemon: bool) -> None:
    """Serve until told to stop; then stop the broker."""
    from penstock.cli.broker.service_manager import ServiceManager
    from penstock.shared.clock import SystemClock

    manager = ServiceManager(os.environ, SystemClock().monotonic_ms())
    try:
        if supervisor.wait_ready():
            supervisor.run(_states(supervisor, config, manager, output, daemon))
    except BaseException:
        supervisor.kill()
        _line("the actors were killed; the next start recovers")
        raise
    manager.stopping()
    _stop(supervisor)


def _stop(supervisor: Supervisor) -> None:
    """Stop the broker, and print the state of the store. Raises Exit if that is not clean."""
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


def _saved_store() -> Path | None:
    """The store that commands without --store would use here because of a saved context."""
    from penstock.client.connecting.chosen_broker import saved_broker

    saved = saved_broker()
    if saved is None or saved.store is None:
        return None
    _line(f"the store is {saved.store}, by {saved.origin}")
    return saved.store


def _registering(name_servers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The settings that --register stands for."""
    if not name_servers:
        return ()
    return (("gateway_enable", "true"), ("namesrv_addr", ";".join(name_servers)))


def _given(store: Path | None, ports: dict[str, int | None]) -> dict[str, str | int]:
    """The given settings that have options of their own."""
    from penstock.shared.config_sources import STORE_KEY

    values = {STORE_KEY: None if store is None else str(store), **ports}
    return {key: value for key, value in values.items() if value is not None}


def _without_that_port(
    error: PortTaken, file: Path | None, settings: tuple[tuple[str, str], ...], store: Path
) -> str:
    """The hint for a port that is taken: the same command, with any free ports."""
    from penstock.shared.process.listeners import GATEWAY_CLIENTS

    words = ["penstock", "up"]
    words += ["--config", str(file)] if file else []
    for key, value in settings:
        words += ["--set", f"{key}={value}"] if key not in (*_PORTS, *_OTHER_PORTS) else []
    words += ["--store", str(store)]
    hint = f"stop that one, or take any free ports: {shlex.join([*words, '--port', 'auto'])}"
    if GATEWAY_CLIENTS in error.what:
        none = shlex.join([*words, "--set", "gateway_enable=false"])
        hint += f"; or serve no {GATEWAY_CLIENTS}: {none}"
    return hint


@contextmanager
def _error_as_line(output: str) -> Iterator[None]:
    """If log lines are JSON objects, print the error that ends the command as one of them, unless
    -o json prints it as an object anyway."""
    from penstock.shared.process.log_line import writes_objects

    try:
        yield
    except PenstockError as error:
        if output == "json" or not writes_objects():
            raise
        _line(str(error), level="error")
        raise click.exceptions.Exit(error.exit_code) from None


def _line(line: str, /, **about: Any) -> None:
    """Print a line on standard error, with its time."""
    from penstock.shared.clock import SystemClock
    from penstock.shared.process.log_line import log_line

    log_line(SystemClock().now_ms(), "supervisor", line, **about)


def _states(
    supervisor: Supervisor, config: Config, manager: ServiceManager, output: str, daemon: bool
) -> Callable[[], None]:
    """A function that prints a line whenever the broker begins to take messages, or to refuse them
    for lack of disk space."""
    from penstock.shared.clock import SystemClock
    from penstock.shared.process.disk_full import why_full
    from penstock.shared.process.log_line import writes_objects

    clock = SystemClock()
    last: str | None = None

    def look() -> None:
        nonlocal last
        manager.alive(clock.monotonic_ms())
        full = why_full(supervisor.store.positions, supervisor.store.paths, config)
        if last is None or bool(full) != bool(last):
            line = _state(supervisor, output, full)
            with ExitStack() as stack:
                if last is not None:  # the reader of the first line may be gone
                    stack.enter_context(suppress(OSError, OutputFailed))
                if daemon and writes_objects():  # both streams are the log
                    _line(line)
                else:
                    click.echo(line)
                    sys.stdout.flush()
            (manager.status if last is not None else manager.ready)(line)
        last = full

    return look


def _state(supervisor: Supervisor, output: str, full: str) -> str:
    """The line that says whether it serves, and where."""
    endpoints, store = supervisor.store.run.endpoints, supervisor.store.paths.root
    damaged = bool(supervisor.store.recovered.quarantined)
    if output == "json":
        row = {"ready": not full, "store": str(store), "endpoints": endpoints}
        return json_line(row | {"read_only": damaged, "full": full})
    return (
        ("full" if full else "ready")
        + "".join(f" {name}={at}" for name, at in served(endpoints).items())
        + f" store={store}"
        + (" read-only=damaged" if damaged else "")
        + (f" no message is taken: {full}" if full else "")
    )
