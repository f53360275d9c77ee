"""Transactions of a synchronous Producer: messages that count only if a local transaction did.

    with producer.transaction("orders") as transaction:
        transaction.send(b"...")      stored as half messages, which no consumer sees
        database.commit()             the local transaction
                                      the end of the block commits; an exception rolls back

If a process dies between its local commit and the end of the block, the broker does not know the
outcome. It asks a living producer of the group, whose `on_check` looks up how the local transaction
ended. So the local commit always comes before its report, and never the other way round.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.where import Where
from penstock.client.core import log
from penstock.client.core.send_options import MessageFields, whole_message
from penstock.client.core.sending.encoding import BatchMessage, Body
from penstock.client.core.sending.frames import Receipt
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.selectors import SelectedBy
from penstock.shared.clock import Clock
from penstock.shared.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from penstock.client.core.transactions import CommittedMessage, OpenTransaction
    from penstock.client.sending.send_loop import SendLoop
    from penstock.client.sending.transaction_loop import Listener, TransactionLoop
    from penstock.shared.messaging.half import HalfForm


class Transacting:
    """Transactions of a producer that was made with a `group`.

    `group` names the producers that can answer for each other's transactions. `on_check` is called
    in a thread of its own with a half message, and returns "commit", "rollback" or "unknown". An
    exception from it is logged and counts as "unknown", after which the broker asks again. A
    producer without `on_check` is not asked.
    """

    _clock: Clock
    _core: ProducerCore
    _lock: threading.RLock
    _loop: SendLoop
    _now_ms: Callable[[], int]
    _timeout_ms: int
    _where: Where
    _talks: TransactionLoop | None

    if TYPE_CHECKING:
        # the producer's
        _disconnect: Callable[[], None]
        _wait_for_room: Callable[[], None]

    def _begin_transactions(self, group: str | None, on_check: Listener | None) -> None:
        """Raises what the constructor raises, and then everything is closed."""
        self._talks = None
        try:
            self._talks = open_loop(self._where, group, on_check, self._timeout_ms, self._clock)
        except BaseException:
            self._disconnect()
            raise

    def _end_transactions(self) -> None:
        if self._talks is not None:
            self._talks.close()

    def transaction(self, topic: str, *, check_after_s: int | None = None) -> Transaction:
        """A transaction, for a `with` block: its end commits, an exception rolls back.

        The broker does not ask about it before `check_after_s` seconds: set this if the local
        transaction takes longer than the broker's transaction_time_out_ms (6 s). Raises
        InvalidArgument.
        """
        # imported here and below: most producers have no transactions
        from penstock.client.core.transactions import OpenTransaction, half_form

        form = half_form(in_group(self._talks).group, check_after_s)
        return Transaction(self, OpenTransaction(topic, form))

    def begin(self, topic: str, *, check_after_s: int | None = None) -> Transaction:
        """Like `transaction`, but ended by hand, by `commit` or `rollback`."""
        return self.transaction(topic, check_after_s=check_after_s)

    def commit(self, transaction: Transaction) -> list[CommittedMessage]:
        """Make its messages visible: see `Transaction.commit`."""
        return transaction.commit()

    def rollback(self, transaction: Transaction) -> None:
        """Discard its messages: see `Transaction.rollback`."""
        transaction.rollback()

    def _send_half(
        self,
        topic: str,
        message: BatchMessage,
        shard: str | None,
        queue: int | SelectedBy | None,
        form: HalfForm,
    ) -> Receipt:
        self._loop.check_usable()
        with self._lock:
            self._wait_for_room()
            self._loop.check_usable()
            # on disk before the local transaction, so that the broker can ask about it later
            future = self._core.send(
                topic, message, shard, queue, "durable", True, self._now_ms(), form
            )
            self._loop.wake()
        return future.result()


class Transaction:
    """Messages that become visible on commit. Use it in a `with` block, or end it by hand.

    Each message ends by itself: if the outcome of one cannot be reported, the broker asks about it.
    """

    def __init__(self, producer: Transacting, opened: OpenTransaction) -> None:
        self._producer, self._open = producer, opened

    def send(
        self,
        body: Body,
        *,
        topic: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Receipt:
        """Store a half message, and return its receipt. It is on disk on return.

        `topic` replaces the transaction's; for the rest see `Producer.send`. Raises what that and
        its future raise, and InvalidArgument if the transaction has ended.
        """
        self._open.check_open()
        topic = self._open.topic if topic is None else topic
        made = whole_message(body, **fields)
        receipt = self._producer._send_half(topic, *made, self._open.form)
        self._open.add(topic, receipt)
        return receipt

    def commit(self) -> list[CommittedMessage]:
        """Make the messages visible, and return where they are. They are on disk on return.

        Raises BrokerTimeout if the broker does not answer: it asks later, by `on_check`, and
        calling this again is safe. Raises TransactionEnded if a check has ended it the other way.
        """
        halves = self._open.halves("commit")
        return self._open.committed(in_group(self._producer._talks).end(halves, "commit"))

    def rollback(self) -> None:
        """Discard the messages, so that nobody ever sees them. Raises what `commit` raises."""
        in_group(self._producer._talks).end(self._open.halves("rollback"), "rollback")

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._open.outcome is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except PenstockError as failed:  # the block's own error is the one to raise
            log().warning("a transaction could not be rolled back, and is asked for: %s", failed)


def open_loop(
    where: Where, group: str | None, on_check: Listener | None, timeout_ms: int, clock: Clock
) -> TransactionLoop | None:
    """The connection of a `group`'s producer to the transactions endpoint; None without a group.
    Raises InvalidArgument, ConnectError."""
    if group is None:
        if on_check is not None:
            raise InvalidArgument(
                "a producer has on_check and no group",
                None,
                'name one: Producer(group="shop", ...)',
            )
        return None
    import socket

    from penstock.client.core.transactions import TransactionCore
    from penstock.client.sending.transaction_loop import TransactionLoop

    name, client_id = str(where.name), f"{socket.gethostname()}@{os.getpid()}"
    core = TransactionCore(name, group, client_id, timeout_ms, on_check is not None)
    found = where.arguments("transactions")
    address = BrokerAddress(
        "transactions", found.get("endpoint"), found.get("store"), timeout_ms, 0
    )
    address.meet()
    return TransactionLoop(core, address, on_check, clock)


def in_group(talks: TransactionLoop | None) -> TransactionLoop:
    """Raises InvalidArgument for a producer without a group."""
    if talks is None:
        raise InvalidArgument(
            "this producer has no group, which could be asked how a transaction ended",
            None,
            'name one: Producer(group="shop", on_check=...)',
        )
    return talks
