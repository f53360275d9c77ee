"""The gateway: RocketMQ's own protocol, for its unmodified clients. A name server and a broker.

Owns:     nothing but connections: `closed_clients`, `client_count`.
Reads:    config/topics.json, `topic_changes`; the queue table, consume queues, log; `queued`.
Hears:    clients, at its TCP endpoints; answers of the writer and the coordinator, whose client it
          is; the reput's doorbell.
Notifies: nobody.
On crash: clients connect again by themselves, and send again what has no answer.

It owns no truth, so nothing here is durable: what is sent goes to the writer, and what is said of
groups to the coordinator; it is answered when they have answered.
"""

from __future__ import annotations

import traceback

from penstock.actors.gateway.calls import Call, Reply, refusal, response
from penstock.actors.gateway.connection import Connection
from penstock.actors.gateway.connections import Connections
from penstock.actors.gateway.groups import Groups
from penstock.actors.gateway.processors import PROCESSORS, unsupported
from penstock.actors.gateway.pulls import Pulls
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.services import Services
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.codes import Request
from penstock.remoting.command import ONEWAY_FLAG, Command
from penstock.shared.errors import RESOURCE_EXHAUSTED, PenstockError
from penstock.shared.process.actor import TICK_MS, Actor, Stage
from penstock.shared.queue.reader import QueueReader


class Gateway(Actor):
    """Serves RocketMQ's clients."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock

    def start(self) -> None:
        stage = self._stage
        self._topics = TopicTable(stage.config, stage.positions)
        self._topics.look()
        self._sends = Sends(stage, self._topics, self._answer)
        self._queues = QueueReader(stage.config, stage.run, stage.positions)
        # what producers have an answer for lies below this
        acknowledged = "flushed" if stage.config.sync_flush else "wrote"
        self._pulls = Pulls(self._queues, self._topics, stage.positions, acknowledged, self._answer)
        self._groups = Groups(stage, self._answer, self._group_changed, self._pulls.wake)
        self._services = Services(
            stage.config, self._address(), stage.run.run_id, self._topics, self._sends,
            self._groups, self._queues, self._pulls, stage.positions, self._answer,
        )  # fmt: skip
        self._pushed = 0
        own = {name: stage.listening[at] for name, at in _served(stage).items()}
        self._connections = Connections(own, self._closed, self._gone)
        # of all the sockets that were inherited, the others' have been closed
        self._limit = stage.connection_limit(stage.config.max_connections)
        stage.listen(self._sends.socket)
        stage.listen(self._groups.socket)
        stage.listen(self._connections.handle)

    def _address(self) -> str:
        """Where clients find the broker. They are told what its messages say, and not what it
        listens on, which may be all addresses of a machine."""
        host = self._stage.config.broker_ip
        port = self._stage.run.endpoints.store_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _closed(self, what: str) -> None:
        number = self._stage.positions["closed_clients"] + 1
        self._stage.positions.publish("closed_clients", number)
        if str(number).strip("0") == "1":  # the first, the tenth, the hundredth ...
            self._stage.report(f"closed a connection that {what}; {number} so far")

    def _gone(self, connection: Connection) -> None:
        self._pulls.drop(connection)
        self._groups.gone(connection)

    def _group_changed(self, group: str) -> None:
        """Have a group's members rebalance."""
        for member in self._groups.members.all_of(group):
            if member.model == "clustering":
                self._pushed += 1
                fields = {"consumerGroup": group}
                push = Command(
                    Request.NOTIFY_CONSUMER_IDS_CHANGED, self._pushed, fields, flag=ONEWAY_FLAG
                )
                self._connections.answer(member.connection, push)

    # --- a cycle ---

    def work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        self._topics.look()
        done = 0
        if not self._stage.stopping:
            self._limit.tend(now_ms)
            done += self._connections.accept(now_ms)
        may_read = self._sends.has_room and not self._stage.stopping
        for connection, command in self._connections.commands(now_ms, may_read):
            self._serve(Call(connection, command, now_ms))
            done += 1
        done += self._groups.work(now_ms) + self._pulls.work(now_ms) + self._sends.work(now_ms)
        self._connections.flush(now_ms)
        self._connections.check(now_ms)
        # what may not be read would end each sleep at once
        self._stage.listen(self._connections.handle, may_read)
        if self._stage.positions["client_count"] != len(self._connections):
            self._stage.positions.publish("client_count", len(self._connections))
        if not done:
            self._queues.rest(now_ms)
        return done

    def _serve(self, call: Call) -> None:
        """Answer a request. Nothing that a client sends ends more than its connection."""
        command = call.command
        if command.is_response:
            return
        processor = PROCESSORS.get(command.code)
        try:
            reply = processor(self._services, call) if processor else unsupported(command.code)
        except PenstockError as error:
            reply = refusal(error)
        except Exception as error:
            # what this process lacks is no fault of the request
            if isinstance(error, MemoryError) or getattr(error, "errno", 0) in RESOURCE_EXHAUSTED:
                raise
            self._stage.report(traceback.format_exc())
            self._connections.close(call.connection, f"asked what failed: code {command.code}")
            return
        if reply is not None:
            self._answer(call, reply)

    def _answer(self, call: Call, reply: Reply) -> None:
        if not call.command.is_oneway:
            self._connections.answer(call.connection, response(call.command, reply))

    # --- the rest of an actor ---

    def idle_ms(self) -> int:
        return min(TICK_MS, self._sends.wait_ms(self._clock.monotonic_ms()))

    def release_deleted(self) -> None:
        self._queues.release_deleted(self._clock.monotonic_ms())

    def drained(self) -> bool:
        return self._sends.is_idle

    def close(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._connections.flush(now_ms)
        self._connections.close_all()
        self._sends.close()
        self._groups.close()
        self._queues.close()


def _served(stage: Stage) -> dict[str, str]:
    """The endpoints of the gateway that there are, by name."""
    endpoints = stage.run.endpoints
    names = ("name_server", "remoting", "remoting_vip")
    return {name: at for name in names if (at := getattr(endpoints, name))}
