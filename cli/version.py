"""`penstock version`: which version this is, and which form of its hot loops it runs."""

from __future__ import annotations

import platform

import click

from penstock.cli.printing.output import output_option, print_json


@click.command(
    epilog="""\b
Examples:
  penstock version
  PENSTOCK_PURE=1 penstock version -o json
""",
)
@output_option
def version(output: str) -> None:
    """Show the version, and whether the compiled loops are used.

    What runs once per message is there twice: compiled, and in pure Python, which does the same
    more slowly. An installation without a compiler has the second only; PENSTOCK_PURE=1 chooses it.
    """
    from penstock import __version__
    from penstock.shared.loops.active import why_pure

    if output == "json":
        python = platform.python_version()
        row = {"version": __version__, "python": python, "native": not why_pure}
        print_json({**row, "why_pure": why_pure})
        return
    click.echo(f"penstock {__version__}, Python {platform.python_version()}")
    click.echo(f"native loops: {f'no, {why_pure}' if why_pure else 'yes'}")
