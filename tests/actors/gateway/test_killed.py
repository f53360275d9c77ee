"""A gateway that is killed: its clients' groups are as they were when they come back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from penstock.client.sending.producer import Producer
from penstock.remoting.codes import Request, Response
from penstock.shared.process.find_broker import find_running
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

GROUP, TOPIC, QUEUES = "CG", "orders", 2
CLIENTS = ("a", "b")
WAIT_S = 60
SESSION_MS = 300_000
# RocketMQ's clients are back after 1 to 3 s; after 0.5 s none of them was a member any more
AWAY_S = 1.5


class Client:
    """One member, as RocketMQ's clients are: a connection, which may have to be made again."""

    def __init__(self, connect: Callable[[str], Any], endpoint: str, name: str) -> None:
        self._connect, self._endpoint, self.name = connect, endpoint, name
        self.come()

    def come(self) -> None:
        self._peer = self._connect(self._endpoint)
        subscription = {"topic": TOPIC, "subString": "*", "subVersion": 1}
        consumer = {
            "groupName": GROUP,
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        body = msgspec.json.encode({"clientID": self.name, "consumerDataSet": [consumer]})
        assert self.ask(Request.HEART_BEAT, body=body).code == Response.SUCCESS

    def ask(self, code: int, fields: dict[str, object] | None = None, body: bytes = b"") -> Any:
        """The answer, past what the gateway pushes meanwhile."""
        number = self._peer.send(code, fields, body)
        while (heard := self._peer.hear()).opaque != number or not heard.is_response:
            pass
        return heard

    def await_end(self) -> None:
        """Of the connection, past what the gateway has pushed."""
        while not self._peer.is_closed():
            pass

    def members(self) -> list[str]:
        answer = self.ask(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
        return list(json.loads(answer.body)["consumerIdList"])

    def pull(self, queue: int, offset: int) -> Any:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subVersion": 0,
        }  # fmt: skip
        return self.ask(Request.PULL_MESSAGE, fields)


class Watcher:
    """A member of Penstock's own, which hears of each change of the group."""

    def __init__(self, context: zmq.Context[Any], store: Any) -> None:
        self._socket = dial(context, find_running(store).endpoints.group)
        self._number = 0

    def ask(self, kind: type, *fields: Any) -> Any:
        self._number += 1
        self._socket.send(encode(kind(self._number, GROUP, *fields)))
        while self._socket.poll(WAIT_S * 1000):
            answer = words.decode_group_answer(self._socket.recv())
            if answer.request == self._number:
                return answer
        raise TimeoutError(kind.__name__)

    def join(self) -> Any:
        wanted = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
        return self.ask(words.Join, "watcher", wanted, SESSION_MS)

    def owners(self) -> dict[int, str]:
        found = self.ask(words.DescribeGroup).queues
        return {each.queue_id: each.owner for each in found if each.topic == TOPIC}

    def close(self) -> None:
        self._socket.close()


def test_the_members_of_a_killed_gateway_go_on_with_the_queues_that_they_had(
    broker_in: Callable[..., Any], tmp_path: Any, new_peer: Callable[[str], Any]
) -> None:
    broker = broker_in(tmp_path, gateway_enable="true", gateway_port=0, gateway_name_server_port=0)
    remoting = broker.status()["endpoints"]["remoting"]
    with Producer(broker.produce) as producer, zmq.Context() as context:
        producer.create_topic(TOPIC, QUEUES)
        watcher = Watcher(context, broker.store)
        try:
            clients = [Client(new_peer, remoting, name) for name in CLIENTS]
            _pull_all(producer, clients, 0, watcher)
            before = watcher.join()
            assert before.members == (*CLIENTS, "watcher")
            pids = {row["name"]: row["pid"] for row in broker.status()["actors"]}
            os.kill(pids["gateway"], signal.SIGKILL)
            killed_s = time.monotonic()
            for each in clients:
                each.await_end()
            while time.monotonic() < killed_s + AWAY_S:
                assert watcher.join().members == before.members
            clients[0].come()  # before the others
            assert clients[0].members() == [*before.members]
            clients[1].come()
            _pull_all(producer, clients, 1, watcher)
            assert watcher.join().version == before.version, "nobody had to divide them anew"
        finally:
            watcher.close()


def _pull_all(producer: Producer, clients: list[Client], offset: int, watcher: Watcher) -> None:
    """Each client pulls a message of its queue, until it has had it and is the queue's owner."""
    for queue in range(QUEUES):
        producer.send(TOPIC, b"%d" % offset, queue=queue).result(WAIT_S)
    until = time.monotonic() + WAIT_S
    # a message is in its queue a moment later, and the coordinator may not know the topic yet
    while True:
        codes = {each.pull(queue, offset).code for queue, each in enumerate(clients)}
        if codes == {Response.SUCCESS} and watcher.owners() == dict(enumerate(CLIENTS)):
            return
        assert time.monotonic() < until, (codes, watcher.owners())
