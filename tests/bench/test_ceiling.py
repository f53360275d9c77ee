"""The broker that discards answers as a broker does, and its table has medians."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import pytest

from penstock.bench.peers.brokers.peer import WRITTEN
from penstock.bench.peers.ceiling.discard import Discard
from penstock.bench.peers.ceiling.table import rows
from penstock.bench.peers.plan import Plan
from penstock.bench.peers.table import Row
from penstock.chaos.interposed.preload import find_compiler
from penstock.remoting.codes import Request
from penstock.remoting.command import Command, decode_command, encode_command


def _row(broker: str, rate: float, cpu: float = 1.0, why: str = "") -> Row:
    spent = {} if why else {"broker": cpu, "client": 2 * cpu}
    way = f"{broker}, 64 in flight"
    return Row(way, WRITTEN, 100, why=why, messages_per_s=rate, cpu_s_per_million=spent)


def test_ratios_are_of_medians_and_what_failed_says_why() -> None:
    found = [_row("RocketMQ", rate) for rate in (50.0, 100.0, 900.0)]
    found += [_row("Discard", 250.0, 4.0), _row("Penstock", 0.0, why="it did not start")]
    assert list(rows(found)) == [
        ["64 in flight", 100, "RocketMQ", 3, "100", 1.0, 1.0, 2.0],
        ["64 in flight", 100, "Discard", 1, "250", 2.5, 4.0, 8.0],
        ["64 in flight", 100, "Penstock", 0, "it did not start", "–", "–", "–"],
    ]


def _asked(peer: socket.socket, request: Request, fields: dict[str, str], body: bytes) -> Command:
    peer.sendall(encode_command(Command(request, 7, fields, body)))
    (size,) = struct.unpack(">I", peer.recv(4, socket.MSG_WAITALL))
    return decode_command(peer.recv(size, socket.MSG_WAITALL))


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_a_broker_that_discards_counts_what_it_is_sent(tmp_path: Path) -> None:
    with Discard().serve(tmp_path / "place", WRITTEN) as server:
        host, _, port = server.told["broker"].partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as peer:
            route = _asked(peer, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"}, b"")
            (queues,) = json.loads(bytes(route.body))["queueDatas"]
            assert queues["writeQueueNums"] == Plan().queues
            for number in range(5):
                sent = _asked(peer, Request.SEND_MESSAGE_V2, {"b": "t"}, b"body")
                assert int(sent.fields["queueOffset"]) == number // Plan().queues
            batch = (struct.pack(">I", 10) + bytes(6)) * 3
            _asked(peer, Request.SEND_BATCH_MESSAGE, {"b": "t"}, batch)
            ends = [
                int(_asked(peer, Request.GET_MAX_OFFSET, asked, b"").fields["offset"])
                for asked in ({"topic": "t", "queueId": str(each)} for each in range(2))
            ]
            assert ends == [8, 0]
