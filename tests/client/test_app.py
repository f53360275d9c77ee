"""An App on a real broker: handlers by their annotations, with the retries of the group."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.client import GroupMessage, Producer
from penstock.client.app import App
from penstock.client.app_handlers import handler_of
from penstock.shared.errors import BrokerTimeout, ConnectError, InvalidArgument, PenstockError
from penstock.testing import AppClient, Broker

pytestmark = pytest.mark.takes(15)

WAIT_S = 120.0


class Order(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Bill:
    number: int


@pytest.fixture(scope="module")
def owned() -> Iterator[Broker]:
    with penstock.open() as broker:
        yield broker


def test_handlers_are_given_what_they_are_annotated_with(owned: Broker) -> None:
    app, seen = App(), dict[str, Any]()

    @app.on("kinds", group="struct")
    def struct(order: Order) -> str:
        seen["struct"] = order
        return "done"

    @app.on("kinds", group="data")
    async def data(message: GroupMessage, bill: Bill) -> None:
        seen["data"] = bill, message.topic

    @app.on("kinds", group="message")
    def itself(message) -> None:  # type: ignore[no-untyped-def]  # what is tried: no annotation
        seen["message"] = message.body

    @app.on("kinds", group="bytes")
    def raw(body: bytes, more: int = 5) -> None:
        seen["bytes"] = body

    with AppClient(app, owned, WAIT_S) as client:
        handled = client.send("kinds", Order(7), keys="k")
    assert {each.group for each in handled} == {"struct", "data", "message", "bytes"}
    assert [each.value for each in handled if each.group == "struct"] == ["done"]
    body = b'{"number":7}'
    assert seen == {
        "struct": Order(7),
        "data": (Bill(7), "kinds"),
        "message": body,
        "bytes": body,
    }
    assert struct(Order(1)) == "done", "it stays a function"


def test_an_exception_is_a_retry_and_another_body_a_dead_letter_at_once(owned: Broker) -> None:
    app, tries, done = App(), list[int](), threading.Event()

    @app.on("again", group="retried", suspend_ms=100, workers=2)
    def fails_once(order: Order) -> None:
        tries.append(order.number)
        if len(tries) == 1:
            raise ValueError("not yet")
        done.set()

    with AppClient(app, owned, WAIT_S) as client:
        with pytest.raises(ValueError, match="not yet"):
            client.send("again", Order(1))
        assert done.wait(WAIT_S), "it comes again"
        owned.producer().send("again", b"no order").result(WAIT_S)
        # its consumer follows, so this waits for the dead letter
        with owned.consumer("%DLQ%retried") as letters:
            (letter,) = letters.poll(WAIT_S)
    assert letter.body == b"no order" and tries == [1, 1]
    assert "not of the type Order" in letter.properties["RETRY_REASON"]


def test_handlers_of_one_group_share_a_member_and_may_be_of_both_kinds(owned: Broker) -> None:
    app, threads = App(), dict[str, threading.Thread]()

    @app.on("left", group="both")
    def function(order: Order) -> None:
        threads["function"] = threading.current_thread()

    @app.on("right", group="both", tags="new")
    async def coroutine(order: Order) -> None:
        threads["coroutine"] = threading.current_thread()

    with AppClient(app, owned, WAIT_S) as client:
        client.send("left", Order(1))
        client.send("right", Order(1), tags="new")
        assert len(app._members) == 1 and threads["function"] is not threads["coroutine"]
    with AppClient(app, owned, 0.3) as client, pytest.raises(BrokerTimeout, match="both"):
        client.send("right", Order(1), tags="old")


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_the_lifespan_is_around_all_of_it(owned: Broker, kind: str) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def around(app: App) -> AsyncIterator[None]:
        app.state.connection = "open"
        yield
        told.append("closed")

    @contextmanager
    def beside(app: App) -> Iterator[None]:
        app.state.connection = "open"
        yield
        told.append("closed")

    app = App(lifespan=around if kind == "asynchronous" else beside)

    @app.on(f"lives-{kind}", group=kind)
    def handle(order: Order) -> None:
        told.append(app.state.connection)

    for _ in range(2):
        with AppClient(app, owned, WAIT_S) as client:
            client.send(f"lives-{kind}", Order(1))
    assert told == ["open", "closed"] * 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: None, "takes nothing"),
        (lambda *messages: None, "without a name"),
        (lambda message, other: None, "nothing is given for: other|nothing is given for"),
        (5, "no handler"),
    ],
)
def test_what_no_message_can_be_given_to_is_refused(function: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        App().on("orders", group="g")(function)


def test_what_contradicts_itself_is_refused() -> None:
    def handle(message: GroupMessage) -> None: ...

    app = App()
    app.on("orders", group="g", orderly=True)(handle)
    for again, said in (
        ({"topic": "orders"}, "two handlers"),
        ({"topic": "bills", "orderly": True}, "said twice"),
        ({"topic": "bills", "tags": "a", "sql": "b > 1"}, "tags and sql"),
        ({"topic": "bills", "workers": 0}, "workers"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            app.on(group="g", **again)(handle)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidArgument, match="no handler"):
        App().run()
    with pytest.raises(InvalidArgument, match="both an endpoint and a store"):
        App("tcp://127.0.0.1:1", store="s")
    namespace: dict[str, Any] = {}
    exec("def hidden(order: Nowhere): ...", namespace)
    with pytest.raises(InvalidArgument, match="top of the module"):
        handler_of(namespace["hidden"])


def test_without_a_broker_it_ends_with_the_error(tmp_path: Path) -> None:
    app = App(tmp_path)
    app.on("orders", group="g")(lambda message: None)
    app.on("orders", group="h")(lambda message: None)
    with pytest.raises(ConnectError):
        app.run()
    with pytest.raises(ConnectError):
        asyncio.run(app.serve())


def test_groups_in_threads_do_not_wait_for_the_threads_of_the_event_loop(owned: Broker) -> None:
    app, groups = App(store=owned.store, start="first"), ("crowd-1", "crowd-2", "crowd-3")
    heard = {group: threading.Event() for group in (*groups, "crowd-both")}

    def hears(topic: str, group: str) -> None:
        @app.on(topic, group=group, workers=1)
        def handle(message: GroupMessage) -> None:
            heard[group].set()

    for each in groups:
        hears("crowd", each)
    hears("crowd", "crowd-both")

    @app.on("crowd-other", group="crowd-both")
    async def other(message: GroupMessage) -> None: ...

    async def serve() -> None:
        # as many threads as asyncio has by itself where there are many more groups
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await app.serve()

    with Producer(store=owned.store) as producer:
        producer.create_topic("crowd", 1)
        producer.create_topic("crowd-other", 1)
        producer.send("crowd", b"x").result(WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, serve())
        try:
            assert [each for each, event in heard.items() if not event.wait(WAIT_S)] == []
        finally:
            app.stop()
        running.result(WAIT_S)


def test_what_has_ended_can_be_told_to_stop_and_run_again(owned: Broker, tmp_path: Path) -> None:
    app = App(tmp_path)
    app.on("orders", group="g")(lambda message: None)
    with pytest.raises(ConnectError):
        app.run()
    app.stop()
    with pytest.raises(ConnectError):
        app.run()

    entered = list[str]()

    @contextmanager
    def broken(app: App) -> Iterator[None]:
        entered.append("entered")
        raise OSError("no database")
        yield

    app = App(store=owned.store, lifespan=broken)
    app.on("orders", group="g")(lambda message: None)
    for _ in range(2):
        with pytest.raises(OSError, match="no database"):
            app.run()
        app.stop()
    assert entered == ["entered"] * 2


def test_the_lifespan_ends_with_the_error_of_a_group(owned: Broker) -> None:
    seen: list[type[BaseException]] = []

    @contextmanager
    def transaction(app: App) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            seen.append(type(error))
            raise

    app = App(store=owned.store, lifespan=transaction)
    app.on("orders", group="refused", start="nowhere")(lambda message: None)
    with pytest.raises(InvalidArgument):
        app.run()
    assert seen == [InvalidArgument]


def test_a_stop_before_the_first_run_is_kept(owned: Broker) -> None:
    app, ran = App(store=owned.store), list[GroupMessage]()
    with Producer(store=owned.store) as producer:
        producer.create_topic("early", 1)
    app.on("early", group="early")(lambda message: ran.append(message))
    app.stop()
    app.run()
    assert ran == []


def test_what_a_decoder_raises_is_told_like_what_a_handler_raises(owned: Broker) -> None:
    app = App()

    class Odd(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            raise RuntimeError("the check of the type itself is broken")

    def handle(body: Any) -> None: ...

    handle.__annotations__["body"] = Odd
    app.on("odd", group="odd", suspend_ms=100)(handle)
    with AppClient(app, owned, WAIT_S) as client, pytest.raises(RuntimeError, match="broken"):
        client.send("odd", b'{"number":1}')


PROGRAM = """
import signal, sys, threading, time, penstock
app = penstock.App(sys.argv[1], start="first")

@app.on("stopped", group="stopped")
def slow(body: bytes):
    print("began", flush=True)
    if sys.argv[2:] == ["strikes itself"]:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(0.3)
    print("ended", flush=True)

@app.on("stopped", group="beside")
async def quick(body: bytes): ...

app.run()
print("closed", flush=True)
"""


@pytest.mark.parametrize("struck", ["the program", "a thread of it"])
def test_ctrl_c_ends_it_after_the_handlers_in_hand(owned: Broker, struck: str) -> None:
    """Also where it does not wake the thread that waits for the end."""
    with Producer(store=owned.store) as producer:
        producer.create_topic("stopped", 1)
        producer.send("stopped", b"x").result(WAIT_S)
    itself = ["strikes itself"] if struck == "a thread of it" else []
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(owned.store), *itself],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "began\n"
        if not itself:
            os.kill(program.pid, signal.SIGINT)
        assert program.stdout.read() == "ended\nclosed\n"
    assert program.returncode == 0


def test_an_app_that_names_its_broker_is_no_app_for_a_test(tmp_path: Path) -> None:
    app = App(str(tmp_path))
    with pytest.raises(InvalidArgument, match="names its broker"):
        AppClient(app)
