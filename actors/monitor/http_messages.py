"""HTTP/1.1 as the monitor speaks it: a codec. Bytes to requests, answers to bytes; no socket.

It has what a browser and Prometheus need to read: GET and HEAD, without a body. Every part of a
request is bounded, and a request outside these bounds is a `BadRequest`, whose status says why. It
must not know what is asked for.
"""

from __future__ import annotations

import ipaddress
import re
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

MAX_HEAD_BYTES = 8192
MAX_HEADERS = 64
MAX_FIELDS = 16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")

HTML, JSON = "text/html; charset=utf-8", "application/json"
# The page loads everything from here and nothing from elsewhere; no other page may frame it.
_ALWAYS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
)


class Request(NamedTuple):
    """A request: `path` is decoded and begins with /, `query` has each field's last value."""

    method: str
    path: str
    query: dict[str, str]
    keeps_open: bool


class Answer(NamedTuple):
    """An answer. `cache` is the Cache-Control header."""

    status: int
    content_type: str
    body: bytes
    cache: str = "no-store"
    close: bool = False


class BadRequest(Exception):
    """A request that gets only a status; then its connection closes."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def head_end(data: bytes | bytearray) -> int:
    """Where the head of a request ends, 0 until all of it has come. Raises BadRequest."""
    at = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if at < 0 and len(data) >= MAX_HEAD_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long")
    return at + 4 if at >= 0 else 0


def decode_request(head: bytes, *, local_only: bool) -> Request:
    """Decode a request's head. With `local_only`, its Host must be this machine by name or address:
    another name may be a web page's whose DNS entry points here. Raises BadRequest."""
    first, *lines = head[:-4].split(b"\r\n")
    found = _REQUEST.fullmatch(first)
    if not found:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "no request line of HTTP/1")
    headers = _headers(lines)
    if headers.get("transfer-encoding") or headers.get("content-length", "0") != "0":
        raise BadRequest(HTTPStatus.BAD_REQUEST, "a request has no body here")
    newer = found[3] == b"1"
    host = headers.get("host", "")
    if (newer and not host) or (local_only and host and not _is_local(host)):
        raise BadRequest(HTTPStatus.MISDIRECTED_REQUEST, "this is not that host")
    connection = headers.get("connection", "").lower()
    keeps_open = "close" not in connection if newer else "keep-alive" in connection
    path, _, query = found[2].decode("ascii").partition("?")
    return Request(found[1].decode(), *_target(path, query), keeps_open)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        # two parsers may read a continued line, or a name with a space, in two ways
        if not colon or not _TOKEN.fullmatch(name) or "\r" in value or "\n" in value:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header cannot be read")
        if (name := name.lower()) in headers and name in ("host", "content-length"):
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"{name} comes twice")
        headers[name] = value.strip()
    return headers


def _target(path: str, query: str) -> tuple[str, dict[str, str]]:
    try:
        fields = dict(
            parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
        )
        return unquote(path, errors="strict"), fields
    except ValueError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the address is not UTF-8") from error


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def encode_answer(answer: Answer, *, with_body: bool, keeps_open: bool) -> bytes:
    """An answer as bytes; for HEAD it is the same without the body."""
    status = HTTPStatus(answer.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"Cache-Control: {answer.cache}\r\n"
        f"Connection: {'keep-alive' if keeps_open else 'close'}\r\n"
        + ("Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else "")
        + _ALWAYS
        + "\r\n"
    )
    return head.encode("ascii") + (answer.body if with_body else b"")


def plain(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
