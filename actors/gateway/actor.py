"""The gateway: RocketMQ's own protocol, for its unmodified clients. A name server and a broker.

Owns:     nothing but connections: `closed_clients`, `client_count`.
Reads:    config/topics.json, `topic_changes`.
Hears:    clients, at its TCP endpoints; answers of the writer, whose client it is.
Notifies: nobody.
On crash: clients connect again by themselves, and send again what has no answer.

It owns no truth, so nothing here is durable: what is sent goes to the writer, and is answered when
the writer has answered.
"""

from __future__ import annotations

import traceback

from penstock.actors.gateway.calls import Call, Reply, refusal, response
from penstock.actors.gateway.connection import Connection
from penstock.actors.gateway.connections import Connections
from penstock.actors.gateway.processors import PROCESSORS, unsupported
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.services import Services
from penstock.actors.gateway.topics import TopicTable
from penstock.shared.errors import RESOURCE_EXHAUSTED, PenstockError
from penstock.shared.process.actor import TICK_MS, Actor, Stage


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
        self._services = Services(
            stage.config, self._address(), self._topics, self._sends, self._answer
        )
        own = {name: stage.listening[at] for name, at in _served(stage).items()}
        self._connections = Connections(own, self._closed, self._gone)
        # of all the sockets that were inherited, the others' have been closed
        self._limit = stage.connection_limit(stage.config.max_connections)
        stage.listen(self._sends.socket)
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
        pass

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
        done += self._sends.work(now_ms)
        self._connections.flush(now_ms)
        self._connections.check(now_ms)
        # what may not be read would end each sleep at once
        self._stage.listen(self._connections.handle, may_read)
        if self._stage.positions["client_count"] != len(self._connections):
            self._stage.positions.publish("client_count", len(self._connections))
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
        """It has no file open."""

    def drained(self) -> bool:
        return self._sends.is_idle

    def close(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._connections.flush(now_ms)
        self._connections.close_all()
        self._sends.close()


def _served(stage: Stage) -> dict[str, str]:
    """The endpoints of the gateway that there are, by name."""
    endpoints = stage.run.endpoints
    names = ("name_server", "remoting", "remoting_vip")
    return {name: at for name in names if (at := getattr(endpoints, name))}
