"""Plain messages without a pause: a turn does nothing else, and delays nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, encode_command
from penstock.remoting.fields import PULL_HAS_SUBSCRIPTION, PULL_WAITS

IN_FLIGHT = 32
# A pull that nobody answers is told that there is nothing after as long.
HELD_MS = 60_000
PLAIN = dict(
    zip("abcdefghi", ("PG", "flood", "TBW102", 4, 0, 0, 1700000000123, 0, ""), strict=True)
)
PULL: dict[str, object] = {
    "consumerGroup": "G", "topic": "flood", "maxMsgNums": 32, "commitOffset": 0,
    "sysFlag": PULL_WAITS | PULL_HAS_SUBSCRIPTION, "suspendTimeoutMillis": HELD_MS,
    "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip


@contextmanager
def _flood(peer: Any) -> Iterator[None]:
    """One client sends to queue 0, a message for each answer."""
    sender, over = peer(), threading.Event()
    texts = {key: str(value) for key, value in PLAIN.items()}
    assert sender.ask(Request.SEND_MESSAGE_V2, texts).code == Response.SUCCESS
    message = encode_command(Command(Request.SEND_MESSAGE_V2, 1, texts))

    def send() -> None:
        with suppress(EOFError, OSError):
            sender.socket.sendall(message * IN_FLIGHT)
            while not over.is_set():
                assert sender.hear().code == Response.SUCCESS
                sender.socket.sendall(message)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_who_connects_and_asks_while_others_send_is_served(peer: Any) -> None:
    with _flood(peer):
        for _ in range(5):
            asker = peer()
            route = asker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "flood"})
            assert route.code == Response.SUCCESS
            beat = asker.ask(Request.HEART_BEAT, body=b'{"clientID":"c","producerDataSet":[]}')
            assert beat.code == Response.SUCCESS
            key: dict[str, object] = {
                "topic": "flood", "key": "nothing", "maxNum": 1, "beginTimestamp": 0,
                "endTimestamp": 1 << 60,
            }  # fmt: skip
            assert asker.ask(Request.QUERY_MESSAGE, key).code == Response.QUERY_NOT_FOUND


def test_a_pull_that_waits_while_others_send_gets_what_comes(peer: Any) -> None:
    """At the end of a queue to which messages come all the time, and of one to which one comes."""
    with _flood(peer):
        puller, sender = peer(), peer()
        offset = 0
        for _ in range(20):
            found = puller.ask(Request.PULL_MESSAGE, PULL | {"queueId": 0, "queueOffset": offset})
            assert found.code == Response.SUCCESS, found.remark
            offset = int(found.fields["maxOffset"])
        for quiet in range(5):
            began = time.monotonic()
            puller.send(Request.PULL_MESSAGE, PULL | {"queueId": 1, "queueOffset": quiet})
            # the pull waits, or will, when the message comes
            assert sender.ask(Request.SEND_MESSAGE_V2, PLAIN | {"e": 1}).code == Response.SUCCESS
            assert puller.hear().code == Response.SUCCESS
            assert time.monotonic() - began < HELD_MS / 1000


def test_a_message_that_comes_alone_is_answered_at_once(peer: Any) -> None:
    """And not with the next tick of the clock, of which there are ten a second."""
    sender = peer()
    assert sender.ask(Request.SEND_MESSAGE_V2, PLAIN | {"b": "alone"}).code == Response.SUCCESS
    took = []
    for _ in range(40):
        began = time.monotonic()
        assert sender.ask(Request.SEND_MESSAGE_V2, PLAIN | {"b": "alone"}).code == Response.SUCCESS
        took.append(time.monotonic() - began)
    assert min(took) < 0.05
