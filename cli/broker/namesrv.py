"""`penstock namesrv`: RocketMQ's name server in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.option_types import PORT
from penstock.cli.printing.output import output_option, print_json
from penstock.shared.config import DEFAULT_NAME_SERVER_PORT
from penstock.shared.errors import PortTaken

if TYPE_CHECKING:
    from penstock.shared.files.certificates import Tls


@click.command(
    epilog="""\b
Examples:
  penstock namesrv
  penstock namesrv --host 0.0.0.0 --port 9876     reachable from other machines
  penstock up --register 127.0.0.1:9876           a broker that registers with it
"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=PORT,
    default=DEFAULT_NAME_SERVER_PORT,
    show_default=True,
    help="0: any free one.",
)
@click.option(
    "--kv-config",
    "settings",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("kvConfig.json"),
    show_default=True,
    help="The file of settings that operators make; made with the first one.",
)
@click.option(
    "--tls-cert",
    "certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Serve TLS too, with this certificate (PEM).",
)
@click.option(
    "--tls-key",
    "key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The certificate's key, without a password (PEM).",
)
@click.option(
    "--order-message-enable",
    "orders",
    is_flag=True,
    help="Say in routes how many queues of a topic each broker keeps in order, as it was set.",
)
@output_option
def namesrv(
    host: str,
    port: int,
    settings: Path,
    certificate: Path | None,
    key: Path | None,
    orders: bool,
    output: str,
) -> None:
    """Run a name server without a broker, for any number of brokers, RocketMQ's own among them.

    Brokers register with it again and again; clients ask it where topics are. It keeps nothing but
    settings: one that is started again knows all brokers within 30 s.

    Stays in the foreground. Prints one line that begins with "ready" once it serves; stop it with
    Ctrl-C. What happens meanwhile is told on standard error, each line with its time in UTC.
    """
    from penstock.actors.gateway import LoneNameServer
    from penstock.shared.clock import SystemClock
    from penstock.shared.errors import InvalidArgument
    from penstock.shared.process.listeners import listen_tcp
    from penstock.shared.process.log_line import log_line

    clock, tls = SystemClock(), _tls(certificate, key)
    try:
        listener = listen_tcp(host, port, "a name server's clients")
    except PortTaken as error:
        hint = f"stop that one, or take any free port: penstock namesrv --host {host} --port 0"
        raise PortTaken(error.what, error.value, hint) from None
    except ValueError as error:
        hint = "name an address of this machine: penstock namesrv --host 127.0.0.1"
        raise InvalidArgument("this is no IP address", error, hint) from None

    def report(line: str) -> None:
        log_line(clock.now_ms(), "namesrv", line)

    server = LoneNameServer(listener, settings, clock, report, tls, orders)

    def stop(*_: object) -> None:
        server.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    at = listener.endpoint.removeprefix("tcp://")
    if output == "json":
        print_json({"ready": True, "name_server": at})
    else:
        click.echo(f"ready name_server={at}")
    sys.stdout.flush()
    server.run()


def _tls(certificate: Path | None, key: Path | None) -> Tls:
    """The TLS settings. Raises InvalidArgument, ConfigError."""
    from penstock.shared.config import Config
    from penstock.shared.errors import InvalidArgument
    from penstock.shared.files.certificates import server_tls

    if (certificate is None) != (key is None):
        hint = "name both: penstock namesrv --tls-cert server.pem --tls-key server.key"
        raise InvalidArgument("a certificate and its key go together", certificate or key, hint)
    return server_tls(
        Config(tls_server_cert_path=str(certificate or ""), tls_server_key_path=str(key or ""))
    )
