"""Errors on standard error: one line for people, or one JSON object with -o json.

    error: [STATUS] what: value. hint
    {"error": {"status": ..., "what": ..., "value": ..., "hint": ..., "exit_code": ...}}

click's own errors are converted to the same form. A command may add `details` to its error, which
JSON has as further fields, and `lines`, which follow in text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from penstock.cli.printing.suggestions import UnknownCommand, near_option
from penstock.shared.errors import InvalidArgument, PenstockError

EXIT_INTERRUPTED = 130
# click has no field for these: their value is only in its message
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
_NO_NUMBER = {
    re.compile(r"is not a valid integer( range)?$"): "is no whole number",
    re.compile(r"is not a valid (float( range)?|seconds)$"): "is no number",
}


class Interrupted(PenstockError):
    """Ctrl-C, or another signal that asks to end; the exit code is 128 + its number."""

    status = "INTERRUPTED"
    exit_code = EXIT_INTERRUPTED


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether -o json, or jsonl, is among the arguments, even when they were never parsed."""
    chosen = ""
    for before, word in zip(("", *arguments), arguments, strict=False):
        if word == "--":
            break
        if before in ("-o", "--output"):
            chosen = word
        elif word.startswith("--output="):
            chosen = word.removeprefix("--output=")
        elif word.startswith("-o") and len(word) > 2:
            chosen = word[2:]
    return chosen in ("json", "jsonl")


def say_error(error: PenstockError, *, as_json: bool) -> None:
    """Print the error that ends the command."""
    if as_json:
        import json

        click.echo(json.dumps({"error": fields(error)}), err=True)
        return
    click.echo(f"error: {error}", err=True)
    for line in getattr(error, "lines", ()):
        click.echo(line, err=True)


def fields(error: PenstockError) -> dict[str, Any]:
    """An error's fields in JSON."""
    return {
        "status": error.status,
        "what": error.what,
        "value": None if error.value is None else str(error.value),
        "hint": error.hint,
        "exit_code": error.exit_code,
        **getattr(error, "details", {}),
    }


def from_click(error: click.ClickException) -> PenstockError:
    """click's error in Penstock's form: what happened, with what, and a command to explain it."""
    context = getattr(error, "ctx", None)
    help_command = f"{context.command_path if context else 'penstock'} --help"
    what, value, near = error.format_message().rstrip("."), None, ""
    if isinstance(error, UnknownCommand):
        what, value, near = "there is no command of this name", error.name, error.hint
    elif isinstance(error, click.NoSuchOption):
        what, value = "there is no option of this name", error.option_name
        near = near_option(error.option_name, context)
    elif isinstance(error, click.MissingParameter):
        kind = error.param.param_type_name if error.param else "parameter"
        what, value = f"a required {kind} is missing", _name(error, context)
    elif isinstance(error, click.BadParameter):
        what = f"{_name(error, context) or 'an argument'} cannot be used"
        value = error.message.rstrip(".")
        for pattern, text in _NO_NUMBER.items():
            value = pattern.sub(text, value)
    elif isinstance(error, click.BadOptionUsage):
        what, value, near = (
            "an option has no value",
            error.option_name,
            "write it behind the option",
        )
    elif extra := _EXTRA.fullmatch(what):
        what, value = "there are more arguments than the command takes", extra[1]
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):
        what = "a command is missing"
    made = InvalidArgument(what, value, f"{near or 'see'}: {help_command}")
    if near:
        made = InvalidArgument(what, value, near)
    made.exit_code = error.exit_code
    return made


def _name(error: click.BadParameter, context: click.Context | None) -> str | None:
    """The parameter as a user writes it: --max, TOPIC."""
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    if error.param is not None:
        return error.param.human_readable_name.strip("[].")  # as in [VIEW], which may be left out
    return " ".join([error.param_hint] if isinstance(error.param_hint, str) else [])
