"""What the synchronous and the asyncio group consumer have in common: arguments, joining, taking.

Only `next_handful` waits for messages, and the asyncio consumer does not call it.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.connecting.where import Where
from penstock.client.core.arguments import check_body_bytes, check_bool, check_ms
from penstock.client.core.groups.assigned_core import AssignedCore
from penstock.client.core.groups.member_core import MemberCore, Settings
from penstock.client.core.groups.process_queue import MAX_BYTES, MAX_MESSAGES, MAX_SPAN, Handful
from penstock.client.core.groups.strategies import Strategy
from penstock.client.core.message import longest_answer_bytes
from penstock.client.groups.member_loop import MemberLoop, Save
from penstock.client.groups.options import (
    GroupOptions,
    GroupStart,
    Topics,
    check_client_id,
    group_options,
)
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import InvalidArgument, QueueUnreadable, StoreUnavailable
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.record import host_text
from penstock.shared.notebook import as_table
from penstock.shared.wire.introduction import Serves

_SERVES: tuple[Serves, ...] = ("members", "consumers", "producers")


class GroupMember:
    """One member of a group.

    `topics` is a topic, a list of topics, or a mapping from topic to tags ("TagA || TagB") or to an
    `Sql` condition; `tags` and `sql` apply to all topics of a list. `start` says where the group
    begins in queues without an offset: "last", "first", or a time. `strategy` divides the queues:
    "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", or an object of core.groups.strategies; all members
    of a group must have the same one. A `broadcasting` member reads all queues, and keeps its
    offsets in a file of its own, named by its `client_id`. An `orderly` member has one message of a
    queue in hand at a time.

    A member that is silent for `session_timeout_ms` is taken for dead. Fetching from a queue stops
    while `max_messages`, `max_bytes` or a span of `max_span` offsets are unfinished. `max_times` is
    how often a message comes again before it is a dead letter, and `consume_timeout_ms` how long it
    may be in hand before it comes again (None: as the group's settings say).
    """

    def __init__(
        self,
        endpoint: str | None = None,
        group: str = "",
        topics: Topics = (),
        *,
        store: Store | None = None,
        tags: str = "",
        sql: str = "",
        start: GroupStart = "last",
        strategy: str | Strategy = "AVG",
        broadcasting: bool = False,
        orderly: bool = False,
        client_id: str = "",
        session_timeout_ms: int = 15_000,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        max_span: int = MAX_SPAN,
        commit_ms: int = 200,
        suspend_ms: int = 1000,
        max_times: int | None = None,
        consume_timeout_ms: int | None = None,
        timeout_ms: int = 30_000,
        max_body_bytes: int = MAX_BODY_BYTES,
        direct: bool = True,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._stopping = False
        self._loop: MemberLoop | None = None
        self._opening = threading.Lock()
        self._max_body_bytes, self._direct = check_body_bytes(max_body_bytes), direct
        self._timeout_ms = check_ms("timeout_ms", timeout_ms)
        settings = Settings(
            *(max_messages, max_bytes, max_span, commit_ms, suspend_ms),
            max_times,
            consume_timeout_ms,
        )
        where = Where(None, endpoint, store)
        # errors that can be found without the broker are raised before connecting
        self._options = group_options(
            group,
            topics,
            client_id=check_client_id(client_id) or "-",
            tags=tags,
            sql=sql,
            start=start,
            broadcasting=broadcasting,
            strategy=strategy,
            orderly=orderly,
            session_timeout_ms=session_timeout_ms,
            settings=settings,
            now_ms=self._clock.now_ms(),
        )
        self._where = where
        self._wait_ms = check_ms("wait_for_broker_ms", wait_for_broker_ms, 0)
        self._client_id = client_id

    @property
    def client_id(self) -> str:
        """The name that the group knows this member by; "" before it has joined."""
        return self._loop.core.options.client_id if self._loop is not None else self._client_id

    @property
    def _is_open(self) -> bool:
        return self._loop is not None

    @property
    def loop(self) -> MemberLoop:
        """The member's thread. Raises StoreUnavailable before the first message is asked for."""
        if self._loop is None:
            raise StoreUnavailable(
                "the member has not joined its group",
                self._options.member.group,
                "it does with the first poll, run or iteration",
            )
        return self._loop

    def _open(self) -> MemberLoop:
        """Join on the first call. May block. Raises ConnectError, StoreDamaged, and
        StoreUnavailable, also if the consumer is closed."""
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                "the consumer belongs to another process",
                f"made in process {self._pid}, used in its fork",
                "make one after the fork",
            )
        with self._opening:
            if self._loop is None:
                if self._stopping:
                    self._refuse()
                self._loop = self._make_loop()
                self._loop.start()
                if self._stopping:  # `stop` came meanwhile, and saw no loop to stop
                    self._loop.begin_to_leave()
                return self._loop
        return self._live()

    def _live(self) -> MemberLoop:
        """The member's thread. Raises StoreUnavailable once it is told to end: from then on it
        would not do what it is asked, and nobody would notice."""
        loop = self.loop
        if loop.closing:
            self._refuse()
        return loop

    def _block_producer(self) -> BlockProducer:
        return BlockProducer(**self._producer_arguments()())

    def _producer_arguments(self) -> Callable[[], dict[str, Any]]:
        """Makes the arguments of the member's own producer. The result may block, and raises
        ConnectError."""
        where = self._where
        waits = {"timeout_ms": self._timeout_ms, "wait_for_broker_ms": self._wait_ms}
        return lambda: {**where.arguments("producers", self._wait_ms), **waits}

    def _be_orderly(self, orderly: bool) -> None:
        member = self._options.member
        if check_bool("orderly", orderly) == member.orderly:
            return
        if self._loop is not None:
            raise InvalidArgument(
                "the member has joined its group in another way",
                f"orderly={member.orderly}",
                "say it when the consumer is made: GroupConsumer(..., orderly=True)",
            )
        self._options = self._options._replace(member=member._replace(orderly=orderly))

    def _refuse(self) -> None:
        raise StoreUnavailable(
            "the consumer is closed", self._options.member.group, "make another one: GroupConsumer"
        )

    def _make_loop(self) -> MemberLoop:
        addresses: dict[str, BrokerAddress] = {}
        for serves in _SERVES:
            where = self._where.arguments(serves, self._wait_ms)
            address = BrokerAddress(
                serves,
                where.get("endpoint"),
                where.get("store"),
                self._timeout_ms,
                self._wait_ms,
            )
            address.meet()
            addresses[serves] = address
        options = self._named(addresses["producers"])
        broadcasting = options.member.model == "broadcasting"
        name = addresses["consumers"].name
        readers = {
            topic: AssignedCore(
                name,
                topic,
                selection=selection,
                timeout_ms=self._timeout_ms,
                max_body_bytes=self._max_body_bytes,
                direct=self._direct,
                everything=options.start if broadcasting else None,
            )
            for topic, selection in options.selections.items()
        }
        save = self._keep_offsets(options, readers) if broadcasting else None
        core = MemberCore(options.member, options.settings, readers)
        longest = longest_answer_bytes(self._max_body_bytes)
        return MemberLoop(core, addresses, longest, self._clock, save)

    def _named(self, address: BrokerAddress) -> GroupOptions:
        """The options with a client id in the form of RocketMQ's: ip@pid#time, or ip@DEFAULT."""
        if self._client_id:
            client_id = self._client_id
        else:
            ip = host_text(address.local_ip() + bytes(4)).rpartition(":")[0].strip("[]")
            own = f"{os.getpid()}#{time.time_ns()}"
            is_shared = self._options.member.model == "broadcasting"
            client_id = f"{ip}@{'DEFAULT' if is_shared else own}"
        instance = os.urandom(8).hex()
        member = self._options.member._replace(client_id=client_id, instance=instance)
        return self._options._replace(member=member)

    def _keep_offsets(self, options: GroupOptions, readers: dict[str, AssignedCore]) -> Save:
        # imported here: most groups keep their offsets in the broker
        from penstock.client.groups.local_offsets import LocalOffsets, offsets_file

        file = offsets_file(options.member.client_id, options.member.group)
        kept = LocalOffsets(file)
        for topic, reader in readers.items():
            reader.begin_at(
                {queue: offset for (of, queue), offset in kept.known.items() if of == topic}
            )

        clock = self._clock  # a closure over self would keep a forgotten consumer alive

        def save(offsets: dict[tuple[str, int], int], broker_name: str, force: bool) -> None:
            kept.save(offsets, broker_name, clock.monotonic_ms(), force)

        return save

    def next_handful(self, most: int, timeout: float | None) -> Handful | None:
        """Wait for what is to be handled next; None after the timeout, or when stopped.

        Raises an error that occurred meanwhile; the next call goes on.
        """
        loop = self.loop
        until = None if timeout is None else time.monotonic() + timeout
        with loop.lock:
            while True:
                handful = self.take_handful(most)
                if handful is not None:
                    loop.offer(loop.now_ms())
                    return handful
                if self._stopping or loop.closing:
                    return None
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                loop.work.wait(left)

    def take_handful(self, most: int) -> Handful | None:
        """What is there, without waiting; the lock must be held. Raises an error that occurred
        meanwhile, but QueueUnreadable only if the other queues have nothing."""
        loop = self.loop
        error, handful = loop.take_error(), None
        is_open = not (self._stopping or loop.closing)
        if is_open and (error is None or isinstance(error, QueueUnreadable)):
            handful = loop.core.take(most, loop.now_ms())
        if error is not None and handful is None:
            raise error
        loop.error = error
        return handful

    def stop(self) -> None:
        """Hand out nothing more: `run` and the iteration end, `poll` returns nothing."""
        self._stopping = True
        if self._loop is not None:
            with self._loop.lock:
                self._loop.core.close()
                self._loop.tell()
                self._loop.wake()

    def _state(self) -> str:
        return "closed" if self._stopping else "open" if self._is_open else "not joined"

    def __repr__(self) -> str:
        group = self._options.member.group
        return f"<GroupConsumer {self.client_id} of group {group}: {self._state()}>"

    def _repr_html_(self) -> str:
        of = [("group", self._options.member.group), ("member", self.client_id)]
        return as_table("Group consumer", [*of, ("state", self._state())])

    def __del__(self) -> None:
        loop: MemberLoop | None = self.__dict__.get("_loop")
        if loop is not None and not loop.closing:
            loop.abandoned = True
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)
