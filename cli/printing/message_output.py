"""How `consume` and `tail` print a message: a line, a row, an object, a template, a selection.

Output to a terminal is made printable, because a message must not control the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.printing.output import (
    print_csv,
    print_head,
    print_json,
    print_rows,
    room,
    shortened,
    shown_time,
)
from penstock.cli.printing.table import Layout, printable
from penstock.shared.errors import InvalidMessage, UnreadableBody

if TYPE_CHECKING:
    from penstock.client.core.message import Message

Print = Callable[["Message"], None]
Write = Callable[[bytes], object]

# Usual widths, because the table is printed as messages come and cannot follow from all of them.
_COLUMNS = {
    **{"queue": 5, "offset": 8, "stored": 24, "tags": 8},
    **{"keys": 8, "message id": 32, "body": 60},
}


def message_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options -o, --template and --select: `output`, `template`, `path`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(["body", "plain", "table", "json", "jsonl", "csv"]),
        default="body",
        show_default=True,
        help="body: each on a line, made printable on a terminal; plain: the same, but always byte "
        "by byte; table, csv: what else there is of each, and its body; json, jsonl: one object "
        "per line.",
    )
    # without a letter, because -f is --follow, as in journalctl and kubectl; only kcat differs
    template = click.option(
        "--template",
        help=r"As this template says: %t topic, %p queue, %o offset, %k keys, %s body, %S its "
        r"bytes, %T ms since 1970, %h properties, %g tags, %i id, \n a line's end; all as in kcat.",
    )
    path = click.option(
        "--select",
        "path",
        help="Instead of a body what this path finds in its object, as JSON: .customer.name, "
        ".lines[0], .lines[].price. With -o plain texts have no quotes.",
    )
    return output(template(path(command)))


def printer(output: str, template: str | None, path: str | None) -> Print:
    """A function that prints one message. Raises InvalidArgument, and click's UsageError for
    options that exclude each other."""
    if template is not None or path is not None:
        if output not in ("body", "plain"):
            raise click.UsageError(f"--template and --select print bodies: no -o {output}")
        return _chosen(output, template, path)
    if output in ("json", "jsonl"):
        return _print_json
    if output == "csv":
        print_csv(list(_COLUMNS))
        return lambda message: print_csv(_cells(message, None))
    if output == "table":
        layout = Layout(tuple(_COLUMNS), tuple(_COLUMNS.values()), {0, 1}, room())
        print_head(layout)
        return lambda message: print_rows(layout, [_cells(message, 60)])
    if output == "body" and sys.stdout.isatty():
        return lambda message: _show(message.body + b"\n")
    write = _bytes_out()
    return lambda message: _write_line(write, message.body)


def as_text(body: bytes) -> str:
    """A body as text; bytes that are not UTF-8 are escaped."""
    return bytes(body).decode("utf-8", "backslashreplace")


def _chosen(output: str, template: str | None, path: str | None) -> Print:
    from penstock.cli.printing.templates import filled, parse_path, parse_template, selected

    parts = parse_template("%s\\n" if template is None else template)
    steps = None if path is None else parse_path(path)
    write = _show if output == "body" and sys.stdout.isatty() else _bytes_out()

    def show(message: Message) -> None:
        if steps is None:
            write(filled(parts, message, message.body if None in parts else b""))
            return
        for value in selected(_object(message), steps):
            write(filled(parts, message, _as_json(value, output == "plain")))

    return show


def _object(message: Message) -> Any:
    try:
        return message.decode()
    except InvalidMessage as error:
        raise UnreadableBody(
            "the body is no JSON to select from", error.value, error.hint
        ) from error


def _as_json(value: Any, bare: bool) -> bytes:
    import msgspec

    return value.encode() if bare and isinstance(value, str) else msgspec.json.encode(value)


def _bytes_out() -> Write:
    sys.stdout.flush()
    return sys.stdout.buffer.write


def _write_line(write: Write, body: bytes) -> None:
    write(body)
    write(b"\n")


def _show(raw: bytes) -> None:
    # line ends and tabs are safe on a terminal
    lines = as_text(raw).split("\n")
    sys.stdout.write("\n".join("\t".join(map(printable, each.split("\t"))) for each in lines))


def _print_json(message: Message) -> None:
    from penstock.cli.printing.records import row
    from penstock.shared.formats.record import decode_record

    fields = row(decode_record(message.record), with_body=True)
    print_json(fields)
    if "body_error" in fields:
        raise UnreadableBody("the body cannot be read", fields["body_error"])


def _cells(message: Message, most: int | None) -> list[object]:
    place = (message.queue_id, message.queue_offset, shown_time(message.store_timestamp_ms))
    kept = (message.tags, message.keys, message.message_id)
    try:
        body = as_text(message.body)
    except UnreadableBody as error:
        body = f"cannot be read: {error.value}"
    return [*place, *kept, body if most is None else shortened(body, most)]
