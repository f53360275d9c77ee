"""Where `penstock trace` gets its facts from: a broker, a store's files, or both.

    by --store, a broker runs     records from the broker; files, positions and groups besides
    by --endpoint                 records and groups from the broker; of its disk nothing is known
    by --store, none runs         all from the files, RocketMQ's too; of members nothing is known

What a source does not know is None and is printed as unknown. It never guesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.trace.forms import MOST, Finder, Place
from penstock.client.core.start import StartAt
from penstock.client.groups.admin import GroupAdmin
from penstock.client.reading.query import MessageQuery
from penstock.shared.errors import ConnectError, MessageNotFound, PenstockError
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.messaging.system_topics import (
    OP_TOPIC,
    QUEUES,
    dlq_topic,
    retry_topic,
)
from penstock.shared.wire.group_messages import GroupInfo, QueueInfo

if TYPE_CHECKING:
    from penstock.cli.trace.files import Files
    from penstock.shared.store.directory import StoreDirectory


class BrokerFinder:
    """Asks a broker, which finds everything that was acknowledged before the question."""

    def __init__(self, where: dict[str, Any], timeout_ms: int) -> None:
        from penstock.client.connection import Connection

        self._broker = Connection(**where)
        self._timeout_ms = timeout_ms
        try:
            self._query: MessageQuery = self._broker.query(timeout_ms=timeout_ms)
        except BaseException:
            self._broker.close()
            raise

    def by_key(self, topic: str, key: str) -> list[Record]:
        found = self._query.by_key(topic, key, MOST)
        return [decode_record(message.record) for message in found]

    def by_id(self, message_id: str) -> Record | None:
        with suppress(MessageNotFound):
            return decode_record(self._query.by_id(message_id).record)
        return None

    def topics(self) -> set[str]:
        return set(self._broker.topics())

    def marks_after(self, half: Record) -> Iterator[Record]:
        # the mark is stored later, by the same clock; a second earlier, as starts are inexact
        at_ms = max(0, half.store_timestamp_ms - 1000)
        with self._broker.consumer(
            OP_TOPIC, start=StartAt(at_ms=at_ms), follow=False, timeout_ms=self._timeout_ms
        ) as consumer:
            while batch := consumer.poll(None):
                for message in batch:
                    yield decode_record(message.record)

    def close(self) -> None:
        self._broker.close()


class Groups(NamedTuple):
    """The known consumer groups: from a broker with their members, else only their offsets."""

    infos: dict[str, GroupInfo]
    with_members: bool


class Source:
    """Everything that is known of a store, for one command. Close it."""

    def __init__(
        self,
        store: Path | None,
        where: dict[str, Any] | None,
        timeout_ms: int,
        geometry: tuple[int | None, int | None],
    ) -> None:
        """`where` is the broker, None if none runs; `store` its directory, None by endpoint."""
        self._close = ExitStack()
        self.files: Files | None = None
        self._directory: StoreDirectory | None = None
        self._where, self._timeout_ms = where, timeout_ms
        self._groups: Groups | None = None
        with ExitStack() as opening:
            if store is not None:
                from penstock.cli.trace.files import FileFinder, Files
                from penstock.shared.process.broker_status import read_status
                from penstock.shared.store.directory import StoreDirectory

                self._directory = opening.enter_context(StoreDirectory(store))
                positions = None if where is None else read_status(store)["positions"]
                self.files = Files(self._directory, positions)
            if where is not None:
                self.finder: Finder = BrokerFinder(where, timeout_ms)
            else:
                assert self._directory is not None, "without a broker there are files"
                self.finder = FileFinder(self._directory, *geometry)
            opening.callback(self.finder.close)
            self._close = opening.pop_all()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close.close()

    @property
    def has_broker(self) -> bool:
        return self._where is not None

    def topics(self) -> set[str]:
        """All topics that a message may have records in."""
        names = self.groups().infos
        return (
            self.finder.topics()
            | set(QUEUES) - {OP_TOPIC}
            | {make(group) for group in names for make in (retry_topic, dlq_topic)}
        )

    def find(self, topic: str, key: str) -> list[Record]:
        return self.finder.by_key(topic, key)

    def by_id(self, text: str) -> Record | None:
        """The record that an offset id names; None for any other text, or if there is none."""
        try:
            host, offset = parse_message_id(text)
        except PenstockError:
            return None
        found = self.finder.by_id(text)
        if found is None and self._directory is not None:
            # it may be stored but not dispatched yet, and then a broker does not show it
            with suppress(PenstockError):
                record = self._directory.record_at(offset)
                found = record if record.store_host == host else None
        return found

    def place(self, record: Record) -> Place:
        """The record's place. If it has expired meanwhile, nothing is known, and nothing raised."""
        if self.files is None:
            return Place(readable=True)  # a broker returns only what is dispatched
        with suppress(PenstockError):
            return self.files.place(record)
        return Place()

    def groups(self) -> Groups:
        """All groups; empty if neither a coordinator nor files can be asked."""
        if self._groups is None:
            self._groups = self._ask_groups() if self._where else self._stored_groups()
        return self._groups

    def _ask_groups(self) -> Groups:
        assert self._where is not None
        try:
            admin = GroupAdmin(**self._where, timeout_ms=self._timeout_ms)
        except ConnectError:  # this broker runs without a coordinator
            return self._stored_groups() if self._directory else Groups({}, False)
        with admin:
            return Groups({name: admin.describe(name, spans=True) for name in admin.list()}, True)

    def _stored_groups(self) -> Groups:
        from penstock.shared.progress.group_rows import load_group_rows

        assert self._directory is not None
        found: dict[str, list[QueueInfo]] = {}
        ends = {
            (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
            for queue in self._directory.queues()
        }
        for (group, topic, queue_id), offset in load_group_rows(self._directory.paths).items():
            low, high = ends.get((topic, queue_id), (0, 0))
            row = QueueInfo(topic, queue_id, offset, "", 0, low, high)
            found.setdefault(group, []).append(row)
        infos = {
            group: GroupInfo(0, group, True, {}, (), tuple(rows)) for group, rows in found.items()
        }
        return Groups(infos, False)
