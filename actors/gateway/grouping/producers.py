"""Producers among RocketMQ's clients: who they are, and what they are asked about transactions.

    a heartbeat               a connection is a producer of these groups; the transactions actor is
                              told, again and again, that somebody can be asked here
    END_TRANSACTION           EndTransaction
    the actor's question      CHECK_TRANSACTION_STATE, to each producer of the group in its turn

A half message is named by its two offsets and its group, as in RocketMQ.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.actors.gateway.asking.link import Link
from penstock.actors.gateway.asking.questions import Then
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.serving import Serving
from penstock.remoting.codes import Request
from penstock.remoting.fields import CheckTransactionFields, EndTransactionFields, write_fields
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.record_layout import store_host
from penstock.shared.messaging.system_topics import HALF_TOPIC
from penstock.shared.process.actor import Stage
from penstock.shared.wire import transaction_messages as words

# Until the transactions actor has said how often it wants to hear of a group.
HEARTBEAT_MS = 1000
# Between two looks for groups that the actor is to hear of.
LOOK_MS = 100
# A client is asked on behalf of this many groups; RocketMQ's clients have one as a rule.
MOST_GROUPS = 64


class Producers:
    """The producers of all connections, and the gateway's connection to the transactions actor."""

    def __init__(self, stage: Stage, requests: PeerRequests, serving: Serving) -> None:
        self._requests, self._run_id = requests, stage.run.run_id
        self._report = stage.report
        endpoint = stage.run.endpoints.transaction_ipc
        self._link = Link(
            stage, "transactions actor", endpoint, words.decode_transaction_request,
            words.decode_transaction_answer, self._asked, serving.later,
        )  # fmt: skip
        # group -> its producers, the next to be asked first
        self._groups: dict[str, OrderedDict[Connection, None]] = {}
        self._of: dict[Connection, set[str]] = {}
        # client id -> the connection of its last heartbeat
        self._clients: dict[str, Connection] = {}
        self._ids: dict[Connection, str] = {}
        # those with more groups than are kept, and how many such there ever were
        self._beyond: set[Connection] = set()
        self._beyond_ever = 0
        # group -> when the actor is to hear of it again
        self._due_ms: dict[str, int] = {}
        self._heartbeat_ms, self._look_ms = HEARTBEAT_MS, 0

    @property
    def socket(self) -> Any:
        return self._link.socket

    def heard(self, connection: Connection, client_id: str, groups: Iterable[str]) -> None:
        """A client says that it is a producer of these groups, and of no others.

        Groups beyond MOST_GROUPS are counted and not kept: a refusal would stop the client's other
        work, and its consumers, too. So names that the actor does not take are left out, too.
        """
        said = dict.fromkeys(each for each in groups if 0 < len(each) <= words.MOST_NAME)
        for group in self._of.get(connection, set()) - said.keys():
            self.left(connection, group)
        # groups that are kept already come first: heartbeats name their groups in any order
        known = self._of.get(connection, set())
        kept = sorted(said, key=known.__contains__, reverse=True)[:MOST_GROUPS]
        if len(said) > len(kept):
            self._say_beyond(connection, client_id, len(said))
        if not kept:
            return
        before = self._ids.get(connection, client_id)
        if before != client_id and self._clients.get(before) is connection:
            del self._clients[before]
        self._ids[connection], self._clients[client_id] = client_id, connection
        for group in kept:
            # a connection that says so again keeps its turn
            self._groups.setdefault(group, OrderedDict()).setdefault(connection)
            self._of.setdefault(connection, set()).add(group)
            self._due_ms.setdefault(group, 0)

    def _say_beyond(self, connection: Connection, client_id: str, count: int) -> None:
        if connection in self._beyond:
            return
        self._beyond.add(connection)
        self._beyond_ever += 1
        if str(self._beyond_ever).strip("0") == "1":  # the first, the tenth, the hundredth ...
            self._report(
                f"client {client_id[:80]!r} is a producer of {count} groups, and nobody asks it of "
                f"transactions of more than {MOST_GROUPS}; {self._beyond_ever} such clients so far"
            )

    def left(self, connection: Connection, group: str) -> None:
        """A connection has left a group."""
        groups = self._of.get(connection, set())
        if group not in groups:
            return
        groups.discard(group)
        del self._groups[group][connection]
        if not self._groups[group]:
            del self._groups[group], self._due_ms[group]
        if not groups:
            del self._of[connection]
            client_id = self._ids.pop(connection)
            if self._clients.get(client_id) is connection:
                del self._clients[client_id]

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._beyond.discard(connection)
        for group in list(self._of.get(connection, ())):
            self.left(connection, group)

    def groups(self) -> dict[str, list[Connection]]:
        """All groups, with the connections of their producers."""
        return {group: list(there) for group, there in self._groups.items()}

    def client(self, client_id: str) -> Connection | None:
        """The connection by which a producer's client is reached."""
        return self._clients.get(client_id)

    def work(self, now_ms: int) -> int:
        done = self._link.work(now_ms)
        if now_ms < self._look_ms:
            return done
        self._look_ms = now_ms + LOOK_MS
        for group, due_ms in self._due_ms.items():
            if now_ms >= due_ms:
                self._due_ms[group] = now_ms + self._heartbeat_ms
                make = partial(
                    words.RegisterProducer, group=group, client_id="gateway", run=self._run_id
                )
                self._link.ask(make, self._registered, now_ms, last_of=group)
        return done

    def _registered(self, answer: Any) -> None:
        if isinstance(answer, words.Registered):
            self._heartbeat_ms = answer.heartbeat_ms

    # --- transactions ---

    def end(
        self, fields: EndTransactionFields, outcome: words.Outcome, then: Then, now_ms: int
    ) -> None:
        """Say how a transaction ended; `then` gets Ended, or a PenstockError."""
        make: Callable[[int], words.EndTransaction] = partial(
            words.EndTransaction,
            group=fields.producer_group,
            unique_key="",
            queue_offset=fields.tran_state_table_offset,
            physical_offset=fields.commit_log_offset,
            outcome=outcome,
            from_check=fields.from_transaction_check,
            run=self._run_id,
        )
        self._link.ask(make, then, now_ms)

    def _asked(self, said: words.CheckTransaction, more: list[bytes]) -> None:
        """The actor wants to know how a transaction ended. If no producer can be asked, it asks
        again."""
        there = self._groups.get(said.group)
        if not there or not more:
            return
        connection = next(iter(there))
        there.move_to_end(connection)
        fields = CheckTransactionFields(
            topic=HALF_TOPIC,
            tran_state_table_offset=said.queue_offset,
            commit_log_offset=said.physical_offset,
            msg_id=said.unique_key,
            transaction_id=said.unique_key,
            offset_msg_id=offset_message_id(store_host(more[0]), said.physical_offset),
        )
        code = Request.CHECK_TRANSACTION_STATE
        self._requests.tell(connection, code, write_fields(fields), more[0])

    def close(self) -> None:
        self._link.close()
