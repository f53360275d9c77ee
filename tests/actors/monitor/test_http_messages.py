"""HTTP as the monitor reads it: what is bounded, and what is refused."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.actors.monitor.http_messages import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    Answer,
    BadRequest,
    decode_request,
    encode_answer,
    head_end,
)

HOST = b"Host: localhost:20915\r\n"


def _decoded(text: bytes, *, local_only: bool = True) -> object:
    end = head_end(text)
    assert end == len(text)
    return decode_request(text, local_only=local_only)


def test_a_request_is_its_path_and_fields() -> None:
    found = decode_request(
        b"GET /api/topic?name=a%20b&page=2&page=3&x= HTTP/1.1\r\n" + HOST + b"\r\n", local_only=True
    )
    assert (found.method, found.path) == ("GET", "/api/topic")
    assert found.query == {"name": "a b", "page": "3", "x": ""}
    assert found.keeps_open


@pytest.mark.parametrize(
    ("line", "header", "keeps"),
    [
        (b"GET / HTTP/1.1", b"Connection: close", False),
        (b"GET / HTTP/1.1", b"Connection: keep-alive", True),
        (b"GET / HTTP/1.0", b"X: y", False),
        (b"GET / HTTP/1.0", b"Connection: Keep-Alive", True),
    ],
)
def test_a_connection_stays_open_as_its_version_says(
    line: bytes, header: bytes, keeps: bool
) -> None:
    text = line + b"\r\n" + HOST + header + b"\r\n\r\n"
    assert decode_request(text, local_only=True).keeps_open is keeps


@pytest.mark.parametrize(
    "host", [b"localhost", b"localhost:1", b"127.0.0.1:20915", b"127.9.9.9", b"[::1]:20915"]
)
def test_this_machine_has_these_names(host: bytes) -> None:
    decode_request(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", local_only=True)


@pytest.mark.parametrize("host", [b"evil.example", b"10.0.0.1", b"localhost.evil.example:80", b""])
def test_a_name_that_only_leads_here_is_refused_on_loopback(host: bytes) -> None:
    """A page of another site can have its own name point to this machine."""
    text = b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
    with pytest.raises(BadRequest) as caught:
        decode_request(text, local_only=True)
    assert caught.value.status is HTTPStatus.MISDIRECTED_REQUEST
    if host:
        decode_request(text, local_only=False)


@pytest.mark.parametrize(
    "text",
    [
        b"GET /\r\n\r\n",
        b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET http://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b" folded: yes\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /?" + b"a=1&" * 17 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        _decoded(text)


def test_a_head_is_bounded_in_bytes_and_lines() -> None:
    with pytest.raises(BadRequest):
        head_end(b"GET /".ljust(MAX_HEAD_BYTES, b"a"))
    assert head_end(b"GET /".ljust(MAX_HEAD_BYTES - 1, b"a")) == 0, "its end may come yet"
    assert head_end(b"a\r\n\r\n".rjust(MAX_HEAD_BYTES)) == MAX_HEAD_BYTES
    line = b"GET / HTTP/1.1\r\n" + HOST
    _decoded(line + b"A: b\r\n" * (MAX_HEADERS - 1) + b"\r\n")
    with pytest.raises(BadRequest):
        _decoded(line + b"A: b\r\n" * MAX_HEADERS + b"\r\n")
    assert head_end(b"GET / HTTP/1.1\r\n") == 0


@given(st.binary(max_size=200), st.booleans())
@example(b"Host: [::1\r\nHost: \xff", True)
def test_any_bytes_are_a_request_or_a_bad_request(rest: bytes, local_only: bool) -> None:
    for text in (rest, b"GET / HTTP/1.1\r\n" + rest):
        whole = text.replace(b"\r\n\r\n", b"") + b"\r\n\r\n"
        try:
            if head_end(whole) == len(whole):
                decode_request(whole, local_only=local_only)
        except BadRequest:
            pass


def test_an_answer_has_its_length_and_for_head_no_body() -> None:
    answer = Answer(200, "text/plain", b"body")
    whole = encode_answer(answer, with_body=True, keeps_open=True)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == b"body" and b"Content-Length: 4" in head
    assert encode_answer(answer, with_body=False, keeps_open=True) == head + b"\r\n\r\n"
    assert b"default-src 'none'" in head and b"unsafe" not in head
    assert head.splitlines()[:5] == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain",
        b"Content-Length: 4",
        b"Cache-Control: no-store",
        b"Connection: keep-alive",
    ]
    refused = encode_answer(answer._replace(status=405), with_body=True, keeps_open=False)
    assert b"\r\nConnection: close\r\nAllow: GET, HEAD\r\n" in refused and b"Allow" not in head


def test_a_head_that_ends_at_once_is_not_too_long_whatever_follows() -> None:
    assert head_end(b"\r\n\r\n".ljust(MAX_HEAD_BYTES)) == 4
