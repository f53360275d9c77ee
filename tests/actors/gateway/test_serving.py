"""What a request leaves to be done later ends its own connection when it fails, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.serving import Serving
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.shared.errors import InvalidArgument


def call_of(name: str) -> Call:
    return Call(cast(Connection, SimpleNamespace(name=name)), Command(10, 1), 0)


def test_what_is_done_later_is_done_in_the_name_of_whoever_left_it() -> None:
    failed, answered = list[tuple[Call, Exception]](), list[tuple[Call, Reply]]()
    serving = Serving(
        lambda call, reply: answered.append((call, reply)),
        lambda call, error: failed.append((call, error)),
    )
    first, second, heard = call_of("first"), call_of("second"), list[int]()

    def raises(error: Exception) -> None:
        raise error

    late = serving.do(first, lambda: serving.later(raises))
    assert late is not None
    slip, refused = ValueError("slip"), InvalidArgument("refused", 1)
    serving.do(second, lambda: [late(slip), heard.append(1), late(refused)])
    assert heard == [1], "the second goes on"
    assert failed == [(first, slip)]
    assert [(call, reply.code) for call, reply in answered] == [(first, Response.INVALID_PARAMETER)]
    serving.do(second, lambda: raises(slip))
    assert failed[1] == (second, slip)
    assert serving.later(raises) is raises, "what nobody asked for is the process's own"
