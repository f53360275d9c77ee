"""Transactions of an asyncio Producer; client/sending/transacting.py says what they promise.

    async with producer.transaction("orders") as transaction:
        await transaction.send(b"...")
        await database.commit()

`on_check` is a coroutine function or an ordinary one, and runs on the event loop. A thread of its
own talks to the broker, so that a producer stays registered while its event loop is busy.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.aio.send_loop import AioSendLoop
from penstock.client.connecting.where import Where
from penstock.client.core import log
from penstock.client.core.message import Message
from penstock.client.core.send_options import MessageFields, whole_message
from penstock.client.core.sending.encoding import BatchMessage, Body
from penstock.client.core.sending.frames import Receipt, SendFuture
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.selectors import SelectedBy
from penstock.client.core.transactions import CommittedMessage, OpenTransaction, half_form
from penstock.client.sending.transacting import in_group, open_loop
from penstock.client.sending.transaction_loop import Decision, TransactionLoop, check_decision
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError
from penstock.shared.messaging.half import HalfForm
from penstock.shared.wire.transaction_messages import Ended, Outcome

AioListener = Callable[[Message], Awaitable[Decision] | Decision]


class Transacting:
    """Transactions of an asyncio producer that was made with a `group`."""

    _clock: Clock
    _core: ProducerCore
    _group: str | None
    _on_check: AioListener | None
    _talks: TransactionLoop | None
    _timeout_ms: int
    _where: Where

    if TYPE_CHECKING:
        # the producer's
        @property
        def _loop(self) -> AioSendLoop: ...
        def _check_room(self) -> None: ...
        def _future(self, topic: str, inner: SendFuture) -> asyncio.Future[Receipt]: ...

    async def _begin_transactions(self) -> None:
        """Raises what the synchronous constructor raises, and then everything is closed."""
        loop = asyncio.get_running_loop()
        on_check = self._on_check
        listener: Callable[[Message], Decision] | None = None
        if on_check is not None:

            async def decide(message: Message) -> Decision:
                decision: Any = on_check(message)
                return check_decision(await decision if inspect.isawaitable(decision) else decision)

            def listener(message: Message) -> Decision:
                return asyncio.run_coroutine_threadsafe(decide(message), loop).result()

        opening = asyncio.ensure_future(
            asyncio.to_thread(
                open_loop, self._where, self._group, listener, self._timeout_ms, self._clock
            )
        )
        try:
            self._talks = await asyncio.shield(opening)
        except BaseException:
            # if this was cancelled, the thread may still open a loop that nobody wants: close it
            opening.add_done_callback(_close_opened)
            await self._loop.close()
            raise

    async def _end_transactions(self) -> None:
        if self._talks is not None:
            await asyncio.to_thread(self._talks.close)

    def transaction(self, topic: str, *, check_after_s: int | None = None) -> Transaction:
        """A transaction, for an `async with` block: its end commits, an exception rolls back."""
        return Transaction(self, topic, half_form(in_group(self._talks).group, check_after_s))

    def begin(self, topic: str, *, check_after_s: int | None = None) -> Transaction:
        """Like `transaction`, but ended by hand, by `commit` or `rollback`."""
        return self.transaction(topic, check_after_s=check_after_s)

    async def commit(self, transaction: Transaction) -> list[CommittedMessage]:
        """Make its messages visible: see `Transaction.commit`."""
        return await transaction.commit()

    async def rollback(self, transaction: Transaction) -> None:
        """Discard its messages, so that nobody ever sees them."""
        await transaction.rollback()

    async def _send_half(
        self,
        topic: str,
        message: BatchMessage,
        shard: str | None,
        queue: int | SelectedBy | None,
        form: HalfForm,
    ) -> Receipt:
        self._check_room()
        now_ms = self._clock.now_ms()
        inner = self._core.send(topic, message, shard, queue, "durable", True, now_ms, form)
        return await self._future(topic, inner)

    async def _end(self, open_one: OpenTransaction, outcome: Outcome) -> list[Ended]:
        """Report the outcome of its messages, and wait for all answers. Raises the first error."""
        assert outcome != "unknown"
        talks, loop = in_group(self._talks), asyncio.get_running_loop()
        answers: list[asyncio.Future[Ended | PenstockError]] = []
        for half in open_one.halves(outcome):
            answers.append(answer := loop.create_future())
            talks.tell(half, outcome, _teller(loop, answer))
        ended = []
        for found in await asyncio.gather(*answers):
            if isinstance(found, PenstockError):
                raise found
            ended.append(found)
        return ended


def _close_opened(opening: asyncio.Future[TransactionLoop | None]) -> None:
    if not opening.cancelled() and opening.exception() is None and (talks := opening.result()):
        talks.close()


def _teller(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Ended | PenstockError]
) -> Callable[[Ended | PenstockError], None]:
    """Brings an answer from the thread that talks to the coroutine that awaits it."""

    def settle(found: Ended | PenstockError) -> None:
        if not answer.done():  # else it was cancelled
            answer.set_result(found)

    def told(found: Ended | PenstockError) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found)

    return told


class Transaction:
    """Messages that become visible on commit. See the synchronous one."""

    def __init__(self, producer: Transacting, topic: str, form: HalfForm) -> None:
        self._producer, self._open = producer, OpenTransaction(topic, form)

    async def send(
        self,
        body: Body,
        *,
        topic: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Receipt:
        """Store a half message, and return its receipt. It is on disk on return."""
        self._open.check_open()
        topic = self._open.topic if topic is None else topic
        made = whole_message(body, **fields)
        receipt = await self._producer._send_half(topic, *made, self._open.form)
        self._open.add(topic, receipt)
        return receipt

    async def commit(self) -> list[CommittedMessage]:
        """Make the messages visible, and return where they are. They are on disk on return.

        Raises BrokerTimeout if the broker does not answer: it asks later, by `on_check`, and
        calling this again is safe. Raises TransactionEnded if a check has ended it the other way.
        """
        return self._open.committed(await self._producer._end(self._open, "commit"))

    async def rollback(self) -> None:
        """Discard the messages, so that nobody ever sees them. Raises what `commit` raises."""
        await self._producer._end(self._open, "rollback")

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._open.outcome is not None:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except PenstockError as failed:  # the block's own error is the one to raise
            log().warning("a transaction could not be rolled back, and is asked for: %s", failed)
