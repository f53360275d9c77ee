"""Clients of RocketMQ's protocol that send nonsense, next to one that does not: all kinds of bent
frames, incomplete frames that stay, deeply nested headers, answers that nobody reads.

Each may cost its connection and nothing else: the gateway stays the same process, the other client
is served in time, and memory is bounded.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.machine.usage import own_memory_bytes
from penstock.remoting.codes import Request
from penstock.remoting.command import Command, encode_command
from penstock.shared.errors import StoreUnavailable

# frames in a round
FRAMES = 100_000
# Limit for another client's wait; a busy machine needs part of it.
WAIT_S = 2.0
# How much the memory may grow. After 1,000,000 frames, and after 3,000,000, it was 26 to 60 MiB.
GROWN_BYTES = 128 << 20
_PEERS, _AT_ONCE, _ANSWER_S = 16, 64, 30
_CODES = [*Request, 0, -1, 99999]
_FIELDS = {
    "a": "g", "b": "bent", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "UNIQ_KEY\x01A\x02", "topic": "bent", "consumerGroup": "bent", "queueId": "0",
    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0",
}  # fmt: skip


def bent_commands_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        broker = Broker(room, any_settings(dice))
        broker.start()
        pids = broker.actors()
        before = own_memory_bytes(pids["gateway"])
        endpoint = broker.status()["endpoints"]["remoting"]
        with another_client(endpoint) as wrong:
            sent = throw(endpoint, dice, FRAMES)
            arena.report.add_fault("bent command", sent)
            arena.moved()
        wrong += [
            f"{name} was replaced" for name, pid in broker.actors().items() if pids[name] != pid
        ]
        if not wrong and (grown := own_memory_bytes(pids["gateway"]) - before) > GROWN_BYTES:
            wrong.append(f"the gateway has grown by {grown >> 20} MiB")
        arena.report.add_violations(wrong, replay)
        broker.stop()


def bent_frames(dice: random.Random) -> Iterator[bytes]:
    """An endless number of frames, most of them bent in one way or another."""
    while True:
        fields = {key: value for key, value in _FIELDS.items() if dice.random() < 0.9}
        if dice.random() < 0.3:
            fields[dice.choice([*_FIELDS])] = dice.choice(
                ["", "-1", "9" * 30, "ü", "\x01\x02", "%"]
            )
        command = Command(
            int(dice.choice(_CODES)), dice.getrandbits(31), fields,
            dice.randbytes(dice.choice((0, 40))), dice.choice((0, 0, 2)),
            is_binary=dice.random() < 0.3,
        )  # fmt: skip
        frame = bytearray(encode_command(command))
        way = dice.randrange(6)
        if way == 0:
            frame[dice.randrange(len(frame))] = dice.getrandbits(8)
        elif way == 1:
            frame[:4] = dice.getrandbits(32).to_bytes(4, "big")
        elif way == 2:
            del frame[dice.randrange(len(frame)) :]
        elif way == 3:
            depth = dice.choice((10, 5000))
            header = b'{"code":34,"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"
            word = len(header).to_bytes(4, "big")
            frame = bytearray((len(header) + 4).to_bytes(4, "big") + word + header)
        elif way == 4:
            frame = bytearray(dice.randbytes(dice.choice((1, 5, 300))))
        yield bytes(frame)


def throw(endpoint: str, dice: random.Random, count: int) -> int:
    """Send bent frames over connections, which are made again as the gateway closes them."""
    frames = bent_frames(dice)
    peers: list[socket.socket] = []
    sent = 0
    try:
        while sent < count:
            while len(peers) < _PEERS:
                peers.append(_connect(endpoint))
                peers[-1].setblocking(False)
            peer = dice.choice(peers)
            together = dice.choice((1, 1, 2, _AT_ONCE))
            data = b"".join(next(frames) for _ in range(together))
            with suppress(BlockingIOError):
                try:
                    peer.send(data)
                    # some read no answer for a while
                    if dice.random() < 0.7 and not peer.recv(1 << 20):
                        raise ConnectionResetError
                except (ConnectionError, BrokenPipeError):
                    peers.remove(peer)
                    peer.close()
            sent += together
    finally:
        for peer in peers:
            peer.close()
    return sent


@contextmanager
def another_client(endpoint: str) -> Iterator[list[str]]:
    """A client that asks all the time. Collects what is wrong with the time its answers take."""
    wrong: list[str] = []
    stopping = threading.Event()

    def work() -> None:
        question = encode_command(Command(Request.GET_BROKER_CLUSTER_INFO, 7))
        try:
            with _connect(endpoint) as peer, selectors.DefaultSelector() as selector:
                selector.register(peer, selectors.EVENT_READ)
                while not stopping.wait(0.02):
                    began = time.monotonic()
                    peer.sendall(question)
                    if not selector.select(_ANSWER_S) or not peer.recv(1 << 16):
                        raise StoreUnavailable("another client is not served", endpoint)
                    if time.monotonic() - began > WAIT_S:
                        wrong.append(f"another client waited {time.monotonic() - began:.1f} s")
        except (OSError, StoreUnavailable) as error:
            wrong.append(f"another client is told: {error}")

    thread = threading.Thread(target=work, name="another client")
    thread.start()
    try:
        yield wrong
    finally:
        stopping.set()
        thread.join()


def _connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S)
