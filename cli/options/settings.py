"""The options for a broker's settings, and `penstock config`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.cli.printing.output import print_json, print_table, rows_option
from penstock.cli.printing.suggestions import Group

Command = Callable[..., Any]


def _pairs(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    from penstock.shared.config_sources import parse_setting

    return tuple(map(parse_setting, values))


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        help="A TOML file of settings.",
    )(command)


def set_option(command: Command) -> Command:
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_pairs,
        help="A setting, as max_queues=1000 or sync_flush_timeout_ms=10s; repeatable. All keys: "
        "`penstock config show`.",
    )(command)


@click.group(cls=Group)
def config() -> None:
    """Show and check a broker's settings."""


@config.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@config_option
@set_option
@click.option("--store", type=click.Path(path_type=Path), help="The store that it is for.")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@rows_option
def show(
    keys: tuple[str, ...],
    file: Path | None,
    settings: tuple[tuple[str, str], ...],
    store: Path | None,
    origin: bool,
    output: str,
) -> None:
    """Show the settings that a broker would start with, all or only some.

    Flags go over the environment (PENSTOCK_BROKER_<KEY>; PENSTOCK_STORE for the store), that over
    the file, and that over the defaults. The sizes of files are the store's own, where it has any.
    What is wrong is said, with exit code 2.

    \b
    Examples:
      penstock config show --origin
      penstock config show --set transient_store_pool_bytes=64MiB --origin
      penstock config show --store ./store --origin
      penstock config show file_reserved_time_h delete_when -o json
    """
    from penstock.shared.config_sources import STORE_KEY, check_known, load_config
    from penstock.shared.store.geometry import settled_sizes

    for key in keys:
        check_known(key, "argument")
    flags = dict(settings) | ({} if store is None else {STORE_KEY: str(store)})
    loaded = load_config(file, flags, os.environ, settled_sizes)
    wanted = keys or loaded.config.__struct_fields__
    values = {key: getattr(loaded.config, key) for key in wanted}
    if output == "json":
        origins = {key: {"value": values[key], "origin": loaded.origins[key]} for key in wanted}
        print_json(origins if origin else values)
        return
    rows = [[key, str(values[key]), *([loaded.origins[key]] if origin else [])] for key in wanted]
    print_table(["key", "value", *(["origin"] if origin else [])], rows)
