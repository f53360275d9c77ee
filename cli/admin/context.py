"""`penstock context`: brokers by name, and the one used by commands and programs that name none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.printing.output import print_json, print_table, rows_option
from penstock.cli.printing.suggestions import Group

if TYPE_CHECKING:
    from penstock.client.connecting.contexts import Contexts


@click.group(cls=Group)
def context() -> None:
    """Save brokers by name, and choose the one that is used where none is named.

    \b
    Commands and `penstock.connect()` use, in this order:
      what is named: --endpoint or --store, or an argument of the call
      penstock.using(...) around the call, in a program
      PENSTOCK_ENDPOINT or PENSTOCK_STORE
      the context that PENSTOCK_CONTEXT names, else the one of `penstock context use`
      ./store, where there is one
      the only broker of this user that runs on this machine
    PENSTOCK_CONTEXT=none leaves out saved contexts and the search for a broker.
    """


def context_names(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Names for the shell to complete; none if the file cannot be read."""
    from penstock.shared.errors import PenstockError

    try:
        return sorted(name for name in _load().contexts if name.startswith(begun))
    except PenstockError:
        return []


@context.command(
    epilog="""\b
Examples:
  penstock context add prod --endpoint tcp://10.0.0.7:20911
  penstock context add here --store ./store --use
"""
)
@click.argument("name")
@click.option("--endpoint", help="Any endpoint of the broker; tcp:// or ipc://")
@click.option("--store", type=click.Path(path_type=Path), help="The store the broker runs on.")
@click.option("--use", "chosen", is_flag=True, help="Use it from now on.")
def add(name: str, endpoint: str | None, store: Path | None, chosen: bool) -> None:
    """Save a broker as NAME, or change it. Nothing is asked: the broker need not run."""
    from penstock.client.connecting.contexts import (
        Context,
        check_name,
        contexts_file,
        save_contexts,
    )
    from penstock.client.connecting.where import Where

    Where(None, endpoint, store)  # raises an error if it is invalid
    saved = _load()
    at = "" if store is None else str(store.expanduser().absolute())
    saved.contexts[check_name(name)] = Context(endpoint or "", at)
    if chosen:
        saved.current = name
    save_contexts(contexts_file(), saved)
    click.echo(f"context {name} is {endpoint or at}{', and in use' if chosen else ''}")


@context.command(
    epilog="""\b
Examples:
  penstock context use prod
  penstock context use none
"""
)
@click.argument("name", shell_complete=context_names)
def use(name: str) -> None:
    """Use the context NAME where no broker is named; `none` ends that."""
    from penstock.client.connecting.contexts import NONE, contexts_file, find_context, save_contexts

    saved = _load()
    if name != NONE:
        find_context(saved, name)
    saved.current = "" if name == NONE else name
    save_contexts(contexts_file(), saved)
    click.echo("no context is in use" if name == NONE else f"context {name} is in use")


@context.command(
    epilog="""\b
Examples:
  penstock context ls
  penstock context ls -o json
"""
)
@rows_option
def ls(output: str) -> None:
    """All saved contexts; the one in use has a star."""
    saved = _load()
    rows = [(name, name == saved.current, each) for name, each in sorted(saved.contexts.items())]
    if output == "json":
        for name, current, each in rows:
            row = {"name": name, "current": current, "endpoint": each.endpoint, "store": each.store}
            print_json(row)
        return
    shown = [
        ("*" if current else "", name, each.endpoint, each.store) for name, current, each in rows
    ]
    print_table(("", "name", "endpoint", "store"), shown)


@context.command(epilog="\b\nExamples:\n  penstock context rm prod\n")
@click.argument("name", shell_complete=context_names)
def rm(name: str) -> None:
    """Forget the context NAME. The broker and its store stay as they are."""
    from penstock.client.connecting.contexts import contexts_file, find_context, save_contexts

    saved = _load()
    find_context(saved, name)
    del saved.contexts[name]
    saved.current = "" if saved.current == name else saved.current
    save_contexts(contexts_file(), saved)
    click.echo(f"context {name} is forgotten")


@context.command(
    epilog="""\b
Examples:
  penstock context show
  PENSTOCK_CONTEXT=prod penstock context show -o json
"""
)
@rows_option
def show(output: str) -> None:
    """Which broker is used here where none is named, and what says so. Nothing is asked."""
    from penstock.client.connecting.chosen_broker import meant_broker

    endpoint, store, origin = meant_broker()
    at = "" if store is None else str(store.absolute())
    if output == "json":
        print_json({"endpoint": endpoint or "", "store": at, "origin": origin})
    else:
        print_table(("broker", "by"), [(endpoint or at, origin)])


def _load() -> Contexts:
    from penstock.client.connecting.contexts import contexts_file, load_contexts

    return load_contexts(contexts_file())
