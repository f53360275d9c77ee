"""Endpoints as users write them: what they say, and what is said of those that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument
from penstock.shared.wire.endpoint import Address, at_port, parse_endpoint, shown

PORTS = st.integers(1, 65535)
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z](\.[a-z]{2,5})?", fullmatch=True),
).filter(lambda host: host not in ("0.0.0.0", "::"))


@given(HOSTS, PORTS)
def test_a_tcp_endpoint_comes_back_as_it_was(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_endpoint(shown(address)) == address


def test_an_ipc_endpoint_is_a_path() -> None:
    assert parse_endpoint("ipc:///run/x.ipc") == Address(path="/run/x.ipc")
    assert shown(Address(path="/run/x.ipc")) == "ipc:///run/x.ipc"


@pytest.mark.parametrize(
    ("endpoint", "what", "hint"),
    [
        ("", "is empty", "tcp://127.0.0.1:20911"),
        ("localhost:20911", "no tcp://", "write tcp://localhost:20911"),
        ("127.0.0.1:20911", "no tcp://", "write tcp://127.0.0.1:20911"),
        ("localhost", "no tcp://", "tcp://127.0.0.1:20911"),
        ("./store", "no tcp://", 'store="./store"'),
        ("/data/store", "no tcp://", 'store="/data/store"'),
        ("http://localhost:20911", "http is no scheme", "write tcp://localhost:20911"),
        ("http://localhost:20911/x", "http is no scheme", "write tcp://localhost:20911"),
        ("udp://127.0.0.1:1", "udp is no scheme", "write tcp://127.0.0.1:1"),
        ("://", "no scheme", "looks like"),
        ("tcp://", "no host", "looks like"),
        ("tcp://:20911", "no host", "looks like"),
        ("tcp://host", "no port", "tcp://host:20911"),
        ("tcp://host:", "no port", "tcp://host:20911"),
        ("tcp://host:0", "port 0", "looks like"),
        ("tcp://host:99999", "no such port", "looks like"),
        ("tcp://host:x", "port is none", "looks like"),
        ("tcp://host:-1", "port is none", "looks like"),
        ("tcp://host:1/path", "more than a host and a port", "write tcp://host:1"),
        ("tcp://me@host:1", "more than a host and a port", "write tcp://host:1"),
        ("tcp://*:20911", "can listen", "tcp://127.0.0.1:20911"),
        ("tcp://0.0.0.0:20911", "can listen", "tcp://127.0.0.1:20911"),
        ("tcp://[::]:20911", "can listen", "tcp://127.0.0.1:20911"),
        ("tcp://::1:20911", "not in brackets", "looks like"),
        ("tcp://[::1:20911", "not in brackets", "looks like"),
        ("ipc://", "no path", "looks like"),
        ("ipc:///" + "x" * 107, "too long", "tcp://"),
        (20911, "no text", "looks like"),
        (b"tcp://host:1", "no text", "looks like"),
    ],
)
def test_what_is_no_endpoint_is_a_usage_error_with_what_was_meant(
    endpoint: object, what: str, hint: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_endpoint(endpoint)
    assert what in caught.value.what and hint in caught.value.hint, caught.value
    assert caught.value.exit_code == 2


@given(st.text(max_size=30))
def test_any_text_is_an_endpoint_or_a_usage_error(text: str) -> None:
    for endpoint in (text, f"tcp://{text}", f"ipc://{text}"):
        try:
            address = parse_endpoint(endpoint)
        except InvalidArgument:
            continue
        assert address.path or (address.host and 0 < address.port < 65536)


def test_the_other_port_is_on_the_host_that_the_client_knows() -> None:
    assert at_port("tcp://broker:1", "tcp://0.0.0.0:2") == "tcp://broker:2"
    assert at_port("tcp://[fe80::1]:1", "tcp://[::]:2") == "tcp://[fe80::1]:2"
    assert at_port("ipc:///a", "tcp://10.0.0.1:2") == "tcp://10.0.0.1:2"
    assert at_port("ipc:///a", "tcp://0.0.0.0:2") == "tcp://127.0.0.1:2"
