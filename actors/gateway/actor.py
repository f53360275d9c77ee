"""The gateway: RocketMQ's own protocol, for its unmodified clients. A name server and a broker.

Owns:     nothing but connections: `closed_clients`, `client_count`, `client_pulls`,
          `client_filtered_pulls`.
Reads:    config/topics.json, `topic_changes`; the queue table, consume queues, log, pool;
          `queued`, `wrote`, `flushed`.
Hears:    clients, at its TCP endpoints; answers of the writer, the coordinator and transactions,
          whose client it is; the doorbells of reput, writer and flusher.
Notifies: nobody.
On crash: clients connect again by themselves, and send again what has no answer.

It owns no truth, so nothing here is durable. Sends go to the writer and changes of groups to the
coordinator, and a client is answered when they have answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.actors.gateway.calls import Call, Reply, response
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.connections import Connections
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.group_counts import GroupCounts
from penstock.actors.gateway.grouping.early_pulls import EarlyPulls
from penstock.actors.gateway.grouping.groups import Groups
from penstock.actors.gateway.grouping.members import Member
from penstock.actors.gateway.grouping.producers import Producers
from penstock.actors.gateway.grouping.settings import GroupSettings
from penstock.actors.gateway.long_requests import LongRequests, Serve
from penstock.actors.gateway.naming.own import OwnNames
from penstock.actors.gateway.naming.registration import Registrations
from penstock.actors.gateway.pace import Pace
from penstock.actors.gateway.processors import PROCESSORS, unsupported
from penstock.actors.gateway.pulls import Pulls
from penstock.actors.gateway.queries import Queries
from penstock.actors.gateway.rates import Rates
from penstock.actors.gateway.sends import Sends
from penstock.actors.gateway.services import Services
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.codes import Request
from penstock.shared.files.certificates import server_tls
from penstock.shared.memory.run_directory import ask_to_clean
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import AHEAD_BYTES, QUIET_TICK_MS, TICK_MS
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.reader import QueueReader


class Gateway(Actor):
    """Serves RocketMQ's clients."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        # as of the beginning of this turn
        self._now_ms = 0

    def start(self) -> None:
        stage = self._stage
        self._topics = TopicTable(stage.config, stage.positions)
        self._topics.look()
        serving = self._serving = Serving(self._answer, self._failed)
        self._sends = Sends(stage, self._topics, serving, self._answer, self._answer_frame)
        self._queues = QueueReader(stage.config, stage.run, stage.positions)
        # producers have answers for all messages below this position
        acknowledged = "flushed" if stage.config.sync_flush else "wrote"
        self._group_settings, self._group_counts = GroupSettings(stage.config), GroupCounts()
        fresh = FreshRecords(stage.config, stage.positions, self._queues.log, AHEAD_BYTES)
        self._pulls = Pulls(
            self._queues, fresh, self._topics, self._group_settings, stage.positions, acknowledged,
            serving, self._answer, stage.clock.monotonic_ms, self._group_counts,
        )  # fmt: skip
        self._queries = Queries(stage, self._queues, self._answer)
        self._long_requests = LongRequests(self._answered_by)
        self._requests = PeerRequests(
            lambda to, command: self._connections.send(to, command), serving.later
        )
        self._producers = Producers(stage, self._requests, serving)
        self._groups = Groups(stage, serving, self._answer, self._rebalance, self._pulls.wake)
        self._early = EarlyPulls(serving, self._answer)
        self._names = OwnNames(stage.config, self._address(), self._topics, stage.report)
        self._rates = Rates(
            self._clock.monotonic_ms(),
            put=lambda: self._queues.message_count,
            got=lambda: self._pulls.given,
            found=lambda: self._pulls.found,
            missed=lambda: self._pulls.missed,
        )
        self._services = Services(
            config=stage.config,
            address=self._address(),
            run_id=stage.run.run_id,
            topics=self._topics,
            sends=self._sends,
            groups=self._groups,
            group_settings=self._group_settings,
            producers=self._producers,
            queues=self._queues,
            fresh=fresh,
            pulls=self._pulls,
            early=self._early,
            requests=self._requests,
            rates=self._rates,
            group_counts=self._group_counts,
            queries=self._queries,
            long_requests=self._long_requests,
            names=self._names,
            positions=stage.positions,
            answer=self._answer,
            now_ms=stage.clock.now_ms,
            started_ms=stage.run.started_ms,
            clean=partial(ask_to_clean, stage.run),
        )
        self._listen()

    def _listen(self) -> None:
        stage = self._stage
        own = {name: stage.listening[at] for name, at in _served(stage).items()}
        tls = server_tls(stage.config)
        self._connections = Connections(
            own, self._closed, self._gone, tls, stage.clock.monotonic_ms, self._take_plain
        )
        self._registrations = Registrations(
            stage.config.name_servers, self._names, self._topics, self._connections,
            self._requests, self._clock, stage.report,
        )  # fmt: skip
        # this process has closed the sockets that it inherited for other actors
        self._limit = stage.connection_limit(stage.config.max_connections)
        self._due_ms = 0
        self._more = self._is_plain = False
        self._may_read = True
        self._pace = Pace()
        stage.listen(self._sends.socket)
        stage.listen(self._groups.socket)
        stage.listen(self._producers.socket)
        stage.listen(self._connections.handle)

    def _address(self) -> str:
        """Where clients find the broker. They are told the address that its messages carry, not the
        one it listens on, which may stand for all addresses of the machine."""
        host = self._stage.config.broker_ip
        port = self._stage.run.endpoints.store_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _closed(self, what: str) -> None:
        number = self._stage.positions["closed_clients"] + 1
        self._stage.positions.publish("closed_clients", number)
        if str(number).strip("0") == "1":  # the first, the tenth, the hundredth ...
            self._stage.report(f"closed a connection that {what}; {number} so far")

    def _gone(self, connection: Connection) -> None:
        self._groups.gone(connection)
        self._early.gone(connection)
        self._names.gone(connection)
        self._requests.gone(connection)
        self._registrations.gone(connection)
        self._producers.gone(connection)

    def _rebalance(self, member: Member, is_always: bool) -> None:
        """Tell a member to rebalance, as its group has changed. A group may have switched these
        notices off; `is_always` overrides that."""
        if not (is_always or self._group_settings.notifies(member.group)):
            return
        code, fields = Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": member.group}
        if member.model == "clustering":
            for connection in member.connections:
                self._requests.tell(connection, code, fields)

    # --- a cycle ---

    def work(self) -> int:
        now_ms = self._now_ms = self._clock.monotonic_ms()
        # periodic work in each turn would slow down each message
        is_due = now_ms >= self._due_ms
        if is_due:
            self._due_ms = now_ms + TICK_MS // 2
            self._by_the_clock(now_ms)
        self._more, self._is_plain = False, not is_due and self._has_only_sends()
        done = 0 if self._is_plain else self._accept(now_ms, is_due)
        done += self._read(now_ms, is_due)
        # Most clients wait for sends and their answers, so these come first: each of the other
        # steps takes as long as a message that comes alone. Groups go before them, as what a group
        # gives back is sent, too.
        if not self._is_plain:
            done += self._groups.work(now_ms, is_due or self._stage.heard(self._groups.socket))
        done += self._sends.work(now_ms, is_due)
        self._connections.flush(now_ms)
        if not self._is_plain:
            done += self._work_for_others(now_ms, is_due)
        # sockets that may not be read would end each sleep at once; answers may have made room
        may_read = self._sends.has_room and not self._stage.stopping
        if may_read != self._may_read:
            self._may_read = may_read
            self._stage.listen(self._connections.handle, may_read)
        if may_read and self._connections.has_more:
            self._more, done = True, done + 1
        self._stage.left_sockets_alone = self._is_plain
        self._pace.note(now_ms, *self._sends.taken_now())
        # no pause where input is there already: it would only be read later
        has_left = self._connections.has_left
        self._stage.pause_ms = 0.0 if has_left else self._pace.pause_ms
        if not done:
            self._queues.rest(now_ms)
        return done

    def _has_only_sends(self) -> bool:
        """Whether only plain messages and the writer's answers can have come. The turn then skips
        all else, which takes longer than a message that comes alone. If a client has sent something
        else, `_take` clears the flag.

        Held pulls are looked at in each turn, as their doorbells are drained before it.
        """
        ready = self._stage.ready
        if not ready or not self._pulls.is_empty:
            return False
        return {self._connections.handle, self._sends.stream.handle}.issuperset(ready)

    def _accept(self, now_ms: int, is_due: bool) -> int:
        taken = 0 if self._stage.stopping else self._connections.accept(now_ms)
        if taken or is_due:
            self._limit.tend(now_ms)
            self._keep("client_count", len(self._connections))
        self._more = taken > 0
        return taken

    def _read(self, now_ms: int, is_due: bool) -> int:
        """Take the frames that clients have sent; returns how many."""
        may_read = self._may_read and not self._stage.stopping
        if not (is_due or not may_read or self._has_news()):
            return 0
        done = 0
        for connection, frame in self._connections.frames(now_ms, may_read):
            self._take(connection, frame, now_ms)
            done += 1
        return done

    def _work_for_others(self, now_ms: int, is_due: bool) -> int:
        """Go on with everything except sends."""
        done = self._pulls.work(now_ms)
        if is_due or self._stage.heard(self._producers.socket):
            done += self._producers.work(now_ms)
        found = self._queries.work() + self._long_requests.work()
        # All other leftovers are with the kernel, or come with an answer: an extra turn at once
        # would find nothing, and each message would pay for it.
        self._more = self._more or found > 0
        done += found
        self._connections.flush(now_ms)
        self._connections.check(now_ms)
        # only held pulls need the doorbells
        self._stage.listen(self._stage.bus.bells, not self._pulls.is_empty)
        self._keep("client_pulls", self._pulls.waiting)
        self._keep("client_filtered_pulls", self._pulls.filtered(now_ms))
        # nobody was notified of messages that came just before a pull was counted
        if self._pulls.has_grown:
            self._more, done = True, done + 1
        return done

    def _has_news(self) -> bool:
        """Whether any connection may have sent something; often there is only an answer of the
        writer."""
        connections = self._connections
        return connections.has_more or self._stage.heard(connections.handle)

    def _by_the_clock(self, now_ms: int) -> None:
        self._look(now_ms)
        self._group_settings.work(now_ms)
        self._requests.work(now_ms)
        self._registrations.work(now_ms)
        self._early.work(now_ms)
        self._rates.work(now_ms, self._clock.now_ms())
        self._group_counts.work(now_ms)

    def _look(self, now_ms: int) -> None:
        """Take up changes to topics."""
        self._topics.look()
        self._names.work(now_ms)

    def _keep(self, name: str, value: int) -> None:
        if self._stage.positions[name] != value:
            self._stage.positions.publish_before_loads(name, value)

    def _take(self, connection: Connection, frame: bytes, now_ms: int) -> None:
        """Serve one frame. Whatever a client sends, it ends at most its own connection."""
        self._is_plain = False
        self._look(now_ms)
        command = self._connections.decoded(connection, frame)
        if command is None:
            return
        try:
            self._serve(Call(connection, command, now_ms))
        except Exception as error:
            self._connections.fail(connection, error, command.code, self._stage.report)

    def _take_plain(
        self,
        connection: Connection,
        data: bytes | bytearray,
        at: int,
        has_time: Callable[[], bool],
    ) -> int:
        """The same for plain messages, which are not decoded into commands."""
        try:
            return self._sends.take_plain(connection, data, at, has_time, self._now_ms)
        except Exception as error:
            code = int(Request.SEND_MESSAGE_V2)
            self._connections.fail(connection, error, code, self._stage.report)
            return at

    def _serve(self, call: Call) -> None:
        """Answer a request, or take an answer."""
        command = call.command
        if command.is_response:
            self._requests.heard(call.connection, command)
            return
        processor = PROCESSORS.get(command.code)

        if processor is None:
            self._answer(call, unsupported(command.code))
        else:
            self._answered_by(call, partial(processor, self._services, call))

    def _answered_by(self, call: Call, serve: Serve) -> None:
        if (reply := self._serving.do(call, serve)) is not None:
            self._answer(call, reply)

    def _failed(self, call: Call, error: Exception) -> None:
        self._connections.fail(call.connection, error, call.command.code, self._stage.report)

    def _answer(self, call: Call, reply: Reply) -> None:
        if call.then is not None:
            call.then(reply)
        elif not call.command.is_oneway:
            self._connections.answer(call.connection, response(call.command, reply))

    def _answer_frame(self, connection: Connection, frame: bytes) -> None:
        self._connections.answer_frame(connection, frame)

    # --- the rest of an actor ---

    def has_more(self) -> bool:
        return self._more

    def idle_ms(self) -> int:
        # clients and name servers have timeouts, which no doorbell announces
        has_peers = len(self._connections) or self._stage.config.name_servers
        tick_ms = TICK_MS if has_peers else QUIET_TICK_MS
        return min(tick_ms, self._sends.wait_ms(self._now_ms))

    def release_deleted(self) -> None:
        self._queues.release_deleted(self._clock.monotonic_ms())
        self._queries.release_deleted()

    def drained(self) -> bool:
        is_idle = self._sends.is_idle and self._groups.is_idle
        return is_idle and self._registrations.leave(self._clock.monotonic_ms())

    def close(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._connections.flush(now_ms)
        self._connections.close_all()
        self._registrations.close()
        self._sends.close()
        self._groups.close()
        self._producers.close()
        self._queries.close()
        self._queues.close()


def _served(stage: Stage) -> dict[str, str]:
    """The endpoints that the gateway serves, by name."""
    endpoints = stage.run.endpoints
    names = ("name_server", "remoting", "remoting_vip")
    return {name: at for name in names if (at := getattr(endpoints, name))}
