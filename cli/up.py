"""`penstock up`: a broker in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.output import output_option, print_json


@click.command(
    epilog="""\b
Examples:
  penstock up --store ./store
  penstock up --config configs/broker.toml
  penstock up --produce-port 0 --consume-port 0   any free ports, printed when ready
"""
)
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.option("--store", type=click.Path(path_type=Path), help="The store directory; made if new.")
@click.option("--produce-port", type=int, help="The producers' port; 0 takes any free one.")
@click.option("--consume-port", type=int, help="The consumers' port; 0 takes any free one.")
@output_option
def up(
    file: Path | None,
    store: Path | None,
    produce_port: int | None,
    consume_port: int | None,
    output: str,
) -> None:
    """Start a broker and watch over its actors.

    Stays in the foreground. Prints one line that begins with "ready" once it serves, with the
    endpoints that clients connect to; stop it with Ctrl-C.
    """
    from penstock.shared.config import default_store, load_config
    from penstock.supervisor import Supervisor

    config = load_config(
        file,
        {
            "store_path_root_dir": None if store is None else str(store),
            "produce_port": produce_port,
            "consume_port": consume_port,
        },
    )
    if store is None and file is None:
        config = load_config(
            None,
            {
                "store_path_root_dir": default_store(),
                "produce_port": produce_port,
                "consume_port": consume_port,
            },
        )
    supervisor = Supervisor(config, say=lambda line: click.echo(line, err=True))
    supervisor.open()
    recovered = supervisor.store.recovered
    if recovered.mode == "unclean":
        click.echo(
            f"recovered after an unclean stop: {recovered.messages} messages scanned from "
            f"{recovered.scanned_from}, {recovered.pool_bytes} bytes taken from the pool, "
            f"{recovered.torn_bytes} torn bytes cut, log ends at {recovered.log_end}, "
            f"{recovered.seconds:.2f} s",
            err=True,
        )
    try:
        supervisor.wait_ready()
        endpoints = supervisor.store.run.endpoints
        if output == "json":
            print_json({"ready": True, "store": str(config.store), "endpoints": endpoints})
        else:
            click.echo(
                f"ready produce={endpoints.produce} consume={endpoints.consume} "
                f"store={config.store}"
            )
        click.get_text_stream("stdout").flush()
        supervisor.run()
    except BaseException:
        supervisor.kill()
        raise
    click.echo("stopping", err=True)
    if supervisor.stop():
        click.echo("stopped; the store is clean", err=True)
    else:
        click.echo("stopped, but not everything was on disk; the next start recovers", err=True)
