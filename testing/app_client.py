"""`AppClient`: an App on a broker of its own, for the tests of its handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import penstock
from penstock.client.app import App, Handled
from penstock.client.sending.producer import Producer
from penstock.embedded import Broker
from penstock.errors import BrokerTimeout, InvalidArgument
from penstock.testing.small_files import SMALL_FILES


class AppClient:
    """Runs an app that names no broker, and sends to it; for a `with` block.

        with AppClient(app) as client:
            client.send("orders", Order(1))           # raises what the handler raises
            (handled,) = client.send("orders", Order(2))
            assert handled.value == "billed"

    The broker is a real one on a temporary store, or the given one, such as the fixture `penstock`.
    Handlers run as in production, with retries, order and dead letters.
    """

    def __init__(self, app: App, broker: Broker | None = None, timeout: float = 30) -> None:
        """`timeout` is how many seconds a message may take until it is handled.

        Raises InvalidArgument for an app that names its broker, as the test would take that
        broker's messages.
        """
        if app.broker is not None:
            raise InvalidArgument("the app names its broker", app.broker, "make it with App()")
        self._app, self._given, self._timeout = app, broker, timeout
        self._undo = ExitStack()
        self._changed = threading.Condition()
        self._handled: list[Handled] = []

    def __enter__(self) -> AppClient:
        with ExitStack() as undo:
            broker = self._given or undo.enter_context(Broker(settings=SMALL_FILES))
            self._producer: Producer = undo.enter_context(Producer(store=broker.store))
            for topic in self._app.topics:
                self._producer.create_topic(topic, 1)
            undo.enter_context(penstock.using(store=broker.store))
            self._app.observers.append(self._observe)
            undo.callback(self._app.observers.remove, self._observe)
            # so that a group also gets what is sent before it has joined
            options = self._app.defaults
            undo.callback(options.update, dict(options))
            undo.callback(options.clear)
            options.setdefault("start", "first")
            pool = undo.enter_context(ThreadPoolExecutor(1))
            context = contextvars.copy_context()
            self._running = pool.submit(context.run, asyncio.run, self._app.serve())
            self._running.add_done_callback(self._end)
            undo.callback(self._stop)
            self._undo = undo.pop_all()
        return self

    def _stop(self) -> None:
        """Stop the app. If it has ended by itself, this would end its next run at once instead."""
        if not self._running.done():
            self._app.stop()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._undo.close()
        if error is None:
            self._running.result()

    def send(self, topic: str, body: Any, **fields: Any) -> list[Handled]:
        """Send a message, and wait until each group of the topic has handled it once.

        Takes what `Producer.send` takes. Raises the first error of a handler, and BrokerTimeout.
        """
        groups = self._app.topics.get(topic)
        if not groups:
            raise InvalidArgument("the app has no handler for this topic", topic, repr(self._app))
        key = self._producer.send(topic, body, **fields).result(self._timeout).unique_key
        until = time.monotonic() + self._timeout
        with self._changed:
            while True:
                found = {each.group: each for each in reversed(self._of(key))}
                if found.keys() == set(groups):
                    break
                if self._running.done():
                    self._running.result()  # raises the app's error, if any
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    left = ", ".join(sorted(set(groups) - found.keys()))
                    raise BrokerTimeout(
                        "a message was not handled in time",
                        f"{topic}: {left} after {self._timeout} s",
                        "it may be no message for them: tags, or a body of another form",
                    )
        for each in found.values():
            if each.error is not None:
                raise each.error
        return list(found.values())

    def _of(self, key: str) -> list[Handled]:
        return [each for each in self._handled if each.message.unique_key == key]

    def _observe(self, handled: Handled) -> None:
        with self._changed:
            self._handled.append(handled)
            self._changed.notify_all()

    def _end(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()
