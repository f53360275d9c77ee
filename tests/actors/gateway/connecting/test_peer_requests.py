"""Numbers of the broker's own requests over a connection: each answer is for its own question."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command

LARGEST = 0x7FFFFFFF


@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.sampled_from([0, 1, LARGEST - 2, LARGEST - 1, LARGEST]),
)
def test_no_two_have_the_same_number_and_answers_come_to_who_asked(
    asks: list[bool], first: int
) -> None:
    sent: list[Command] = []
    heard: list[tuple[int, Any]] = []

    def note(at: int, answer: object) -> None:
        heard.append((at, answer))

    connection = cast(Connection, SimpleNamespace(may_receive=True, unread_bytes=0, address="a"))
    requests = PeerRequests(lambda to, command: sent.append(command))
    requests._number = first
    for at, is_asked in enumerate(asks):
        if is_asked:
            requests.ask(connection, 1, {}, b"", partial(note, at), 0)
        else:
            requests.tell(connection, 1, {})
    assert len({each.opaque for each in sent}) == len(asks)
    assert all(1 <= each.opaque <= LARGEST for each in sent), "a signed word of 4 bytes"
    assert [not each.flag & ONEWAY_FLAG for each in sent] == asks
    answers = [Command(0, each.opaque, flag=RESPONSE_FLAG) for each in sent]
    for answer in reversed(answers):
        requests.heard(connection, answer)
    assert heard == [(at, answers[at]) for at in reversed(range(len(asks))) if asks[at]]
