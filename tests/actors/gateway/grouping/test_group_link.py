"""Commits that come with pulls are said together, and before whatever else is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from penstock.actors.gateway.grouping.group_link import LATE_MS, GroupLink
from penstock.shared.process.actor import Stage
from penstock.shared.wire import group_messages as words

HANG_S = 60
MAKE = partial(words.Commit, group="g", client_id="c")


class Bench:
    """A link, and the coordinator's end of it."""

    def __init__(self, place: Path) -> None:
        self._context = zmq.Context[Any]()
        self._heard = self._context.socket(zmq.ROUTER)
        endpoint = f"ipc://{place}/coordinator"
        self._heard.bind(endpoint)
        stage = cast(Stage, SimpleNamespace(context=self._context))
        self.link = GroupLink(
            stage, "coordinator", endpoint, words.decode_group_request, words.decode_group_answer,
            lambda said, more: None, lambda then: then,
        )  # fmt: skip

    def commit(
        self, offset: int, now_ms: int, then: Callable[[Any], None] | None = None, queue: int = 0
    ) -> None:
        commits = (words.QueueCommit("t", queue, offset, 1),)
        self.link.ask(partial(MAKE, commits=commits), then, now_ms, ("g", "t", queue))

    def heard(self, now_ms: int, count: int = 0) -> list[Any]:
        """What the coordinator has been asked, `count` questions at least, with the offsets of
        commits for short."""
        found: list[Any] = []
        until = time.monotonic() + HANG_S
        self.link.work(now_ms)
        while (is_there := self._heard.poll(20)) or len(found) < count:
            assert time.monotonic() < until
            self.link.work(now_ms)  # its connection may not be made yet
            if not is_there:
                continue
            _, header = self._heard.recv_multipart()
            asked = words.decode_group_request(header)
            is_commit = isinstance(asked, words.Commit)
            found.append([each.offset for each in asked.commits] if is_commit else type(asked))
        return found

    def close(self) -> None:
        self.link.close()
        self._heard.close(linger=0)
        self._context.term()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def _nothing(answer: Any) -> None:
    """Somebody who waits."""


def test_the_last_commit_of_each_queue_is_said_a_little_later(bench: Bench) -> None:
    for offset in (1, 2, 3):
        bench.commit(offset, 1000 + offset)
    bench.commit(7, 1004, queue=1)
    assert bench.link.waits and bench.heard(1000 + LATE_MS) == []
    assert bench.heard(1001 + LATE_MS, 2) == [[3], [7]]
    assert not bench.link.waits


def test_whatever_else_is_asked_is_asked_after_them(bench: Bench) -> None:
    bench.commit(5, 1000)
    leave = partial(words.Leave, group="g", client_id="c")
    bench.link.ask(leave, _nothing, 1001)
    assert bench.heard(1001, 2) == [[5], words.Leave]
    bench.commit(6, 1002)
    bench.commit(8, 1003, _nothing)
    assert bench.heard(1003, 2) == [[6], [8]]
