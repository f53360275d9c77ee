"""The `penstock` command: a table of sub-commands, each imported only when it is called.

`penstock --help` is the first thing that anybody types, so this module imports only click and the
error classes; the table has the one-line helps. It also decides how all commands end: which exit
code an error gets, and that Ctrl-C and a closed pipe end quietly.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.printing.error_lines import (
    EXIT_INTERRUPTED,
    Interrupted,
    from_click,
    say_error,
    wants_json,
)
from penstock.cli.printing.suggestions import Group
from penstock.cli.streams import OutputFailed, discard_output, finish_output, prepare_streams
from penstock.shared.errors import PenstockError, StoreUnavailable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name -> (where the click command is, its short help)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("penstock.cli.broker.up:up", "Start a broker and watch over its actors."),
    "down": ("penstock.cli.broker.daemon:down", "Stop the broker that runs on a store."),
    "logs": ("penstock.cli.broker.daemon:logs", "Show what a broker in the background has said."),
    "namesrv": (
        "penstock.cli.broker.namesrv:namesrv",
        "Run RocketMQ's name server, for several brokers.",
    ),
    "status": ("penstock.cli.broker.status:status", "Show a broker's actors and how far each got."),
    "top": ("penstock.cli.broker.top:top", "Watch a broker: actors, positions, rates, lag."),
    "produce": ("penstock.cli.messages.produce:produce", "Send messages to a topic."),
    "consume": (
        "penstock.cli.messages.consume:consume",
        "Print messages of a topic, or follow it.",
    ),
    "tail": (
        "penstock.cli.messages.tail:tail",
        "Print the newest messages of a topic, and what comes.",
    ),
    "query": ("penstock.cli.messages.query:query", "Find messages by key or by id."),
    "trace": (
        "penstock.cli.trace.command:trace",
        "Tell what became of a message, and who has had it.",
    ),
    "topics": (
        "penstock.cli.admin.topics:topics",
        "List, create, describe, change and delete topics.",
    ),
    "groups": (
        "penstock.cli.admin.groups:groups",
        "List, describe, reset and remove consumer groups.",
    ),
    "dlq": ("penstock.cli.admin.dlq:dlq", "List, show, resend and export dead letters."),
    "clean": ("penstock.cli.admin.clean:clean", "Have a broker delete old messages now."),
    "config": (
        "penstock.cli.options.settings:config",
        "Show a broker's settings and where they are from.",
    ),
    "context": (
        "penstock.cli.admin.context:context",
        "Save brokers by name, and choose one of them.",
    ),
    "recovery": (
        "penstock.cli.store.recovery:recovery",
        "Show what starts after a crash have found and done.",
    ),
    "store": (
        "penstock.cli.store.command:store",
        "Look into a store directory, check and repair it.",
    ),
    "spark": ("penstock.cli.spark.command:spark", "Work on whole stores with Apache Spark."),
    "bench": ("penstock.cli.bench.command:bench", "Measure this installation on this machine."),
    "chaos": ("penstock.cli.chaos:chaos", "Break brokers, and hold them to their promises."),
    "completion": ("penstock.cli.completion:completion", "Print a shell's completion script."),
    "cheat": ("penstock.cli.cheat:cheat", "Show the commands that are used most, by task."),
    "debug-bundle": (
        "penstock.cli.broker.debug_bundle:debug_bundle",
        "Gather what somebody needs who is to help, without messages.",
    ),
    "doctor": (
        "penstock.cli.broker.doctor:doctor",
        "Look whether this machine has what is needed.",
    ),
    "version": ("penstock.cli.version:version", "Show the version and how it was built."),
    "demo": ("penstock.cli.demo.command:demo", "336,776 flights through a broker into Spark."),
}

# These run a broker or read its files. On other systems they say so before they are imported.
NEED_LINUX = frozenset(
    (
        *("down", "logs", "namesrv", "status", "top", "clean", "config", "recovery", "store"),
        *("spark", "bench", "chaos", "debug-bundle", "doctor", "demo"),
    )
)


class LazyGroup(Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in NEED_LINUX:
            from penstock.shared.linux import check_linux

            check_linux(f"penstock {cmd_name}")
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # click would import every command for its help, while the user waits at a key
        return [
            CompletionItem(name, help=short)
            for name, (_, short) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would exit with 1, which here means that a problem was found
            raise click.exceptions.Exit(0) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from penstock import __version__

        click.echo(f"penstock {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def penstock() -> None:
    """RocketMQ's storage engine and broker in Python.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage or configuration, 3 nobody answers,
    5 the store is damaged, 130 interrupted.

    \b
    Examples:
      penstock up --store ./store
      echo hello | penstock produce orders --store ./store
      penstock consume orders --store ./store
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    prepare_streams()
    given = sys.argv[1:] if arguments is None else arguments
    as_json = wants_json(given)
    try:
        code = _run(given)
        sys.stdout.flush()
    except PenstockError as error:
        if isinstance(error, OutputFailed):
            discard_output()
        say_error(error, as_json=as_json)
        code = error.exit_code
    except BrokenPipeError:
        # the reader is gone; what is still buffered must not raise again at exit
        discard_output()
        code = 0
    except KeyboardInterrupt:
        say_error(Interrupted("interrupted"), as_json=as_json)
        code = EXIT_INTERRUPTED
        finish_output()
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code. An error that ends it is raised as PenstockError."""
    try:
        ended: Any = penstock.main(arguments, prog_name="penstock", standalone_mode=False)
    except OSError as error:
        if isinstance(error, PenstockError | BrokenPipeError):
            raise
        if error.filename is None:
            raise StoreUnavailable(
                "the operating system refused a call",
                error.strerror or repr(error),
                "look at the limits of this machine and of its disks",
            ) from error
        from penstock.shared.next_steps import look_at

        raise StoreUnavailable(
            "a file cannot be read or written",
            f"{os.fsdecode(error.filename)}: {error.strerror}",
            look_at(os.fsdecode(error.filename)),
        ) from error
    except click.Abort:
        raise Interrupted("interrupted") from None
    except click.exceptions.NoArgsIsHelpError as error:
        if wants_json(arguments):
            raise from_click(error) from None
        error.show()
        return error.exit_code
    except click.ClickException as error:
        raise from_click(error) from None
    # without standalone mode click returns the argument of ctx.exit(), or the command's result
    return ended if isinstance(ended, int) else 0


if __name__ == "__main__":
    main()
