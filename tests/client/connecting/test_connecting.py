"""Which broker a client talks to, by store or by endpoint, and what it is told when it cannot."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import penstock
import penstock.errors
from penstock.client import Consumer, GroupConsumer, MessageQuery, Producer, aio
from penstock.client.connecting import broker_address
from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.core.aim import Aim
from penstock.client.groups.member_loop import Line
from penstock.shared.errors import (
    BrokerTimeout,
    ConnectError,
    InvalidArgument,
    PenstockError,
    WrongStore,
)
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run
from penstock.shared.process import find_broker
from penstock.shared.wire.sockets import dial

pytestmark = pytest.mark.takes(30)

WAIT_S = 60
# Far less than a client's timeout of 30 s, however busy this machine is.
AT_ONCE_S = 8
Client = Callable[..., Any]


def consumer(*endpoint: Any, **named: Any) -> Any:
    return Consumer(*endpoint, topic="orders", **named)


def _entered(make: Callable[..., Any]) -> Client:
    """An asyncio client, opened and closed at once."""

    def client(*endpoint: Any, **named: Any) -> None:
        async def enter() -> None:
            async with make(*endpoint, **named):
                pass

        asyncio.run(enter())

    return client


PRODUCERS = {"producer": Producer, "aio producer": _entered(aio.Producer)}
CONSUMERS = {
    "consumer": consumer,
    "query": MessageQuery,
    "aio consumer": _entered(
        lambda *endpoint, **named: aio.Consumer(*endpoint, topic="t", **named)
    ),
    "aio query": _entered(aio.MessageQuery),
}
CLIENTS = PRODUCERS | CONSUMERS


def each(clients: dict[str, Client]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", clients.values(), ids=list(clients))


@pytest.fixture
def closed_port() -> Iterator[str]:
    """Nobody listens there, and of those that take any free port none takes it meanwhile; a broker
    that is told to can."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{bound.getsockname()[1]}"


# --- by store ---


def test_every_client_finds_the_broker_of_a_store(broker: Any) -> None:
    with Producer(store=broker.store) as producer:
        receipt = producer.send("by-store", b"1", keys="k").result(WAIT_S)
    with Consumer(store=str(broker.store), topic="by-store", follow=False) as found:
        assert [message.body for message in found] == [b"1"]
    with MessageQuery(store=broker.store) as query:
        assert query.by_id(receipt.message_id).body == b"1"

    async def ask() -> None:
        async with aio.Producer(store=broker.store) as sender:
            await sender.send("by-store", b"2")
        async with aio.Consumer(store=broker.store, topic="by-store", follow=False) as reading:
            assert sorted([message.body async for message in reading]) == [b"1", b"2"]
        async with aio.MessageQuery(store=broker.store) as asking:
            assert (await asking.by_id(receipt.message_id)).body == b"1"

    asyncio.run(asyncio.wait_for(ask(), WAIT_S))


@pytest.mark.parametrize("name", ["store", "produce", "consume"])
def test_connect_makes_clients_of_one_broker_and_closes_them(broker: Any, name: str) -> None:
    topic = f"connect-{name}"
    with penstock.connect(getattr(broker, name)) as connection:
        producer = connection.producer()
        receipt = producer.send(topic, b"x").result(WAIT_S)
        (message,) = connection.consumer(topic, follow=False)
        assert message.body == b"x"
        assert connection.query().by_id(receipt.message_id).body == b"x"
        assert topic in connection.topics()
    with pytest.raises(penstock.errors.StoreUnavailable):
        producer.send(topic, b"y")

    async def ask() -> None:
        async with aio.connect(getattr(broker, name)) as connection:
            await (await connection.producer()).send(topic, b"y")
            found = await connection.consumer(topic, follow=False)
            assert sorted([message.body async for message in found]) == [b"x", b"y"]
            assert (await (await connection.query()).by_id(receipt.message_id)).body == b"x"
            assert topic in await connection.topics()

    asyncio.run(asyncio.wait_for(ask(), WAIT_S))


def test_importing_penstock_stays_cheap() -> None:
    told = "import sys, penstock; penstock.connect; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "penstock" in loaded and "zmq" not in loaded
    assert not [name for name in loaded if name.startswith("penstock.")]


@each(CLIENTS)
def test_exactly_one_of_endpoint_and_store_is_named(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither an endpoint nor a store"):
        client()
    with pytest.raises(InvalidArgument, match="both an endpoint and a store"):
        client("tcp://127.0.0.1:1", store=tmp_path)
    with pytest.raises(InvalidArgument, match="no path"):
        client(store="")
    with pytest.raises(InvalidArgument, match="tcp://localhost:20911"):
        client("localhost:20911")
    with pytest.raises(InvalidArgument):
        penstock.connect("tcp://127.0.0.1:1", store=tmp_path)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (5, "no path"),
        ("127.0.0.1:20911", "tcp://127.0.0.1:20911"),
        ("http://host:20911", "tcp://host:20911"),
    ],
)
def test_what_is_neither_an_endpoint_nor_a_store_is_told_at_once(target: Any, told: str) -> None:
    for connect in (penstock.connect, aio.connect):
        with pytest.raises(InvalidArgument, match=told):
            connect(target)


@each(CLIENTS)
def test_a_store_without_a_broker_is_told_of_at_once(client: Client, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError, match="no such directory") as caught:
        client(store=tmp_path / "none")
    assert f"penstock up --store {tmp_path / 'none'}" in caught.value.hint
    assert time.monotonic() - began < AT_ONCE_S


# --- nobody, or somebody else, at an endpoint ---


@each(CLIENTS)
def test_a_new_client_is_refused_at_once_where_nobody_listens(
    client: Client, closed_port: str
) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError, match="nobody listens") as caught:
        client(closed_port)
    assert closed_port in str(caught.value)
    assert time.monotonic() - began < AT_ONCE_S


@each(CLIENTS)
def test_a_port_where_nobody_speaks_is_told_of_soon(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(BrokerTimeout, match="says nothing"):
            client(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - began < AT_ONCE_S


@each(PRODUCERS)
def test_a_producer_at_the_consumers_port_is_sent_to_the_right_one(
    broker: Any, client: Client
) -> None:
    with pytest.raises(ConnectError, match="consumers' port") as caught:
        client(broker.consume)
    assert broker.produce in caught.value.hint


@each(CONSUMERS)
def test_a_consumer_at_the_producers_port_is_sent_to_the_right_one(
    broker: Any, client: Client
) -> None:
    with pytest.raises(ConnectError, match="producers' port") as caught:
        client(broker.produce)
    assert broker.consume in caught.value.hint


@each(CLIENTS)
def test_a_broker_of_another_protocol_is_named(
    broker: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_address, "PROTOCOL", 99)
    with pytest.raises(ConnectError, match="another version of the protocol") as caught:
        client(store=broker.store)
    assert f"pip install penstock=={penstock.__version__}" in caught.value.hint


@pytest.mark.parametrize("first", ["::1", "127.0.0.1"])
def test_a_name_with_addresses_of_both_kinds_leads_to_the_one_that_answers(
    broker: Any, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As localhost has on many machines; ZeroMQ would try the one of version 6 for ever."""
    port = int(broker.produce.rpartition(":")[2])
    families = {"::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET}
    order = sorted(families, key=lambda each: each != first)
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, type: int = 0, **named: Any) -> list[Any]:
        if host != "both.invalid":
            return real(host, port, *args, type=type, **named)
        return [(families[each], type, 0, "", (each, port)) for each in order]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with Producer(f"tcp://both.invalid:{port}") as producer:
        assert producer.send("both", b"x").result(WAIT_S).topic == "both"


# --- waiting for a broker ---


@pytest.mark.parametrize("by_store", [True, False])
def test_a_client_may_start_before_its_broker(
    broker_in: Any, tmp_path: Path, closed_port: str, by_store: bool
) -> None:
    port = int(closed_port.rpartition(":")[2])
    where = {"store": tmp_path / "store"} if by_store else {"endpoint": closed_port}
    sent: list[Any] = []

    def send() -> None:
        try:
            with Producer(**where, wait_for_broker_ms=WAIT_S * 1000) as producer:
                sent.append(producer.send("early", b"x").result(WAIT_S))
        except ConnectError as error:
            sent.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.3)  # some tries find nobody
    broker_in(tmp_path, produce_port=port)
    thread.join()
    assert sent and sent[0].topic == "early", sent


@pytest.mark.parametrize("by_store", [True, False])
def test_a_member_may_start_before_its_broker(
    broker_in: Any, tmp_path: Path, closed_port: str, by_store: bool
) -> None:
    """It asks for three of the broker's endpoints, by any of them."""
    port = int(closed_port.rpartition(":")[2])
    where = {"store": tmp_path / "store"} if by_store else {"endpoint": closed_port}
    came: list[Any] = []

    def consume() -> None:
        try:
            with GroupConsumer(
                **where, group="early", topics="early", wait_for_broker_ms=WAIT_S * 1000
            ) as member:
                came.extend(each.body for each in member.poll(WAIT_S))
        except PenstockError as error:
            came.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.3)  # some tries find nobody
    broker_in(tmp_path, produce_port=port)
    with Producer(store=tmp_path / "store") as producer:
        while thread.is_alive():
            producer.send("early", b"x").result(WAIT_S)
            thread.join(0.05)
    assert came and {*came} == {b"x"}


def test_waiting_ends_with_what_was_found_last(closed_port: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError, match="nobody listens"):
        Producer(closed_port, wait_for_broker_ms=400)
    assert time.monotonic() - began >= 0.25


# --- a broker that comes back, and one that does not ---


@pytest.fixture(params=["socket file", "tcp"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """By store: the socket file of this user, or TCP where that is another one's."""
    if request.param == "tcp":
        monkeypatch.setattr(broker_address.os, "access", lambda path, mode: False)
    yield request.param


def test_clients_by_store_find_the_next_run_on_other_ports(
    broker_in: Any, tmp_path: Path, way: str
) -> None:
    """Killed in between, so that what was sent has its outcome from the next broker, once."""
    first = broker_in(tmp_path)
    with (
        Producer(store=first.store) as producer,
        Consumer(store=first.store, topic="orders") as reading,
        MessageQuery(store=first.store) as query,
    ):
        assert (producer._address.endpoint == first.produce) == (way == "tcp")
        before = producer.send("orders", b"0", queue=0).result(WAIT_S)
        assert [message.body for message in reading.poll(WAIT_S)] == [b"0"]
        assert query.by_id(before.message_id).body == b"0"
        first.kill()
        late = [producer.send("orders", b"%d" % number, queue=0) for number in range(1, 50)]
        second = broker_in(tmp_path)
        assert second.produce != first.produce and second.consume != first.consume
        offsets = [future.result(WAIT_S).queue_offset for future in late]
        assert offsets == list(range(1, 50))
        found: list[bytes] = []
        while len(found) < 49:
            batch = reading.poll(WAIT_S)
            assert batch, found
            found += [message.body for message in batch]
        assert found == [b"%d" % number for number in range(1, 50)]
        assert query.by_id(before.message_id).body == b"0"
        assert producer.topics()["orders"] == 4


def test_asyncio_clients_by_store_find_the_next_run_on_other_ports(
    broker_in: Any, tmp_path: Path, way: str
) -> None:
    async def test() -> None:
        first = broker_in(tmp_path)
        async with (
            aio.Producer(store=first.store) as producer,
            aio.Consumer(store=first.store, topic="orders") as reading,
            aio.MessageQuery(store=first.store) as query,
        ):
            before = await producer.send("orders", b"0", queue=0)
            assert [message.body for message in await reading.poll(WAIT_S)] == [b"0"]
            first.kill()
            late = producer.send("orders", b"1", queue=0)
            await asyncio.to_thread(broker_in, tmp_path)
            assert (await late).queue_offset == 1
            assert [message.body for message in await reading.poll(WAIT_S)] == [b"1"]
            assert (await query.by_id(before.message_id)).body == b"0"

    asyncio.run(asyncio.wait_for(test(), 4 * WAIT_S))


def test_another_stores_broker_at_the_same_ports_refuses_clients_by_store(
    broker_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_address.os, "access", lambda path, mode: False)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    mine = broker_in(tmp_path / "a")
    ports = [int(each.rpartition(":")[2]) for each in (mine.produce, mine.consume)]
    with (
        Producer(store=mine.store, timeout_ms=3000) as producer,
        Consumer(store=mine.store, topic="orders", timeout_ms=3000) as reading,
        MessageQuery(store=mine.store, timeout_ms=3000) as query,
    ):
        receipt = producer.send("orders", b"mine").result(WAIT_S)
        assert reading.poll(WAIT_S)
        mine.kill()
        other = broker_in(tmp_path / "b", produce_port=ports[0], consume_port=ports[1])
        assert other.produce == mine.produce
        lost = [producer.send(topic, b"mine too") for topic in ("orders", "new-topic")]
        for future in lost:
            with pytest.raises(WrongStore) as caught:
                future.result(WAIT_S)
            assert str(other.store) in str(caught.value) and str(mine.store) in str(caught.value)
        with pytest.raises(WrongStore):
            reading.poll(WAIT_S)
        with pytest.raises(WrongStore):
            query.by_id(receipt.message_id)
        # a client by endpoint has named no store, and is served
        with Producer(mine.produce) as anybody:
            assert anybody.topics() == {}
        with pytest.raises(ConnectError, match="no broker runs on this store"):
            Producer(store=mine.store)
        # its own broker comes back, and all of them go on
        again = broker_in(tmp_path / "a")
        assert producer.send("orders", b"mine").result(WAIT_S)
        assert reading.poll(WAIT_S) and query.by_id(receipt.message_id).body == b"mine"
        assert again.produce != mine.produce


def test_a_run_json_that_leads_to_another_stores_broker_is_found_out(
    broker_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store in a container, say, whose ports are another broker's out here."""
    from msgspec.structs import replace

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    mine, other = broker_in(tmp_path / "a"), broker_in(tmp_path / "b")
    run, there = (read_run(StorePaths(each.store)) for each in (mine, other))
    assert run is not None and there is not None
    misled = replace(run, endpoints=there.endpoints)
    monkeypatch.setattr(find_broker, "find_running", lambda store: misled)
    for client in (Producer, consumer, MessageQuery):
        with pytest.raises(WrongStore) as caught:
            client(store=mine.store)
        assert str(other.store) in str(caught.value) and str(mine.store) in str(caught.value)


def test_a_store_that_is_moved_while_its_broker_runs_keeps_its_clients(
    broker_in: Any, tmp_path: Path
) -> None:
    # what actors open by its name they need later than this test ends, or have before the move
    late_ms = 3_600_000
    running = broker_in(
        tmp_path,
        flush_interval_consume_queue_ms=late_ms,
        flush_consume_queue_thorough_interval_ms=late_ms,
        flush_consumer_offset_interval_ms=late_ms,
        clean_resource_interval_ms=late_ms,
    )
    moved = tmp_path / "moved"
    with Producer(store=running.store) as producer:
        producer.send("orders", b"0", queue=0).result(WAIT_S)
        with Consumer(store=running.store, topic="orders") as consumer:
            assert consumer.poll(WAIT_S)  # it has its queue, whose files are made by name
        segments = StorePaths(running.store).commit_log
        while len(list(segments.iterdir())) < 2:
            time.sleep(0.01)
        running.store.rename(moved)
        try:
            assert producer.send("orders", b"1", queue=0).result(WAIT_S).queue_offset == 1
            with Producer(store=moved) as another:
                assert another.send("orders", b"2", queue=0).result(WAIT_S).queue_offset == 2
        finally:
            moved.rename(running.store)


def test_an_endpoint_that_cannot_be_read_is_refused_before_anybody_is_looked_for() -> None:
    with pytest.raises(InvalidArgument):
        BrokerAddress("consumers", "udp://127.0.0.1:1", None, 1000, 0)


def test_a_client_follows_its_broker_from_an_endpoint_that_zeromq_has_given_up(
    broker_in: Any, tmp_path: Path
) -> None:
    """As it does after a peer that breaks the protocol, or leaves in the middle of a greeting."""
    first = broker_in(tmp_path)
    address = BrokerAddress("consumers", None, first.store, 1000, 0)
    address.meet()
    aim, before = Aim(), address.endpoint
    with zmq.Context() as context:
        dialed = dial(context, before)
        dialed.disconnect(before)
        first.kill()
        broker_in(tmp_path)
        address.follow(dialed, aim, 1000)
        assert address.endpoint != before
        dialed.disconnect(address.endpoint)  # raises where it was not connected there
        dialed.close(linger=0)


def test_a_lost_connection_is_told_also_where_nobody_was_waiting_for_it() -> None:
    """A member's thread may be at work when its coordinator dies, and must join at once after."""
    with zmq.Context() as context:
        listening = context.socket(zmq.ROUTER)
        port = listening.bind_to_random_port("tcp://127.0.0.1")
        address, aim = BrokerAddress("members", f"tcp://127.0.0.1:{port}", None, 1000, 0), Aim()
        line = Line(context, address, aim, 1 << 20, zmq.Poller())
        line.socket.send(b"hello")
        assert listening.poll(WAIT_S * 1000)
        both = {line.socket, line.lost.events}
        assert not line.look_after(1000, both)
        listening.close(linger=0)
        assert line.lost.events.poll(WAIT_S * 1000)
        assert line.look_after(1001, both)
        assert not line.look_after(1002, both), "once"
        line.close()


def test_a_first_question_waits_for_its_connection_and_for_nothing_else(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_s = 20
    monkeypatch.setattr("penstock.client.reading.query.REPEAT_MS", pause_s * 1000)
    monkeypatch.setattr("penstock.client.aio.query.REPEAT_MS", pause_s * 1000)
    began = time.monotonic()
    with MessageQuery(store=broker.store) as query:
        assert query.by_key("orders", "none") == []

    async def ask() -> None:
        async with aio.MessageQuery(store=broker.store) as asking:
            assert await asking.by_key("orders", "none") == []

    asyncio.run(ask())
    assert time.monotonic() - began < pause_s
