"""What a pull keeps while it waits: a client decides how large its request is."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.group_counts import GroupCounts
from penstock.actors.gateway.grouping.early_pulls import LATE_MS, EarlyPulls
from penstock.actors.gateway.grouping.settings import GroupSettings
from penstock.actors.gateway.pulls import Pulls
from penstock.actors.gateway.requests import queues
from penstock.actors.gateway.serving import Serving
from penstock.remoting.codes import Language, Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import PULL_HAS_SUBSCRIPTION, PULL_WAITS, PullFields, write_fields
from penstock.shared.errors import GroupNotFound
from penstock.shared.filters.message_filter import KnownFilters
from penstock.shared.messaging.system_topics import SYSTEM_GROUP_PREFIX
from penstock.shared.names import MAX_GROUP_CHARACTERS

LARGE = 1 << 20
WAIT_MS = 60_000


class Body(bytearray):
    """One of which it shows that nobody has it any more: bytes cannot be referred to weakly."""


class Gateway:
    """Pulls of one client, for a queue without messages."""

    def __init__(self, client: socket.socket) -> None:
        self.connection = Connection(client, ("127.0.0.1", 1), 0)
        self.answered: list[tuple[Call, Reply]] = []
        serving = Serving(self._answer, lambda call, error: pytest.fail(repr(error)))
        allows: Any = SimpleNamespace(check_pull=lambda *asked: None, version=0)
        fresh: Any = SimpleNamespace(look=lambda queued: set(), end=lambda *queue: 0)
        no_queues: Any = SimpleNamespace(queues=lambda topic: {}, queued=0)
        self.early = EarlyPulls(serving, self._answer)
        self.pulls = Pulls(
            no_queues, fresh, allows, allows, cast(Any, {"queued": 0, "wrote": 0}), "wrote",
            serving, self._answer, lambda: 0, GroupCounts(),
        )  # fmt: skip
        self.has_member = False
        known = SimpleNamespace(version=0, expression_type="TAG", expression="*")
        member = SimpleNamespace(subscriptions={"orders": known}, moved=(), model="clustering")
        groups = SimpleNamespace(
            members=SimpleNamespace(
                of=lambda *asked: member if self.has_member else None,
                subscriber=lambda *asked: None,
            ),
            pulled=lambda *asked: None,
        )
        self._services: Any = SimpleNamespace(
            group_settings=allows, groups=groups, early=self.early, pulls=self.pulls,
            filters=KnownFilters(),
        )  # fmt: skip

    def _answer(self, call: Call, reply: Reply) -> None:
        self.answered.append((call, reply))

    def pull(self, flag: int, topic: str = "orders", **said: Any) -> tuple[Any, Reply | None]:
        """What shows whether its body is kept, and the answer if it has one at once."""
        body = Body(LARGE)
        fields = write_fields(PullFields("G", topic, 0, 0, 32, flag, 0, WAIT_MS, **said))
        command = Command(
            Request.PULL_MESSAGE, 7, fields | {"more": "x" * LARGE}, cast(Any, body), 4, "remark",
            Language.CPP, 300, True,
        )  # fmt: skip
        reply = queues.pull(self._services, Call(self.connection, command, 0))
        return weakref.ref(body), reply


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Gateway(ours)


# what the answer needs of the request
BARE = Command(Request.PULL_MESSAGE, 7, {}, b"", 4, "", Language.CPP, 300, True)


@pytest.mark.parametrize(
    ("flag", "text"), [(PULL_WAITS | PULL_HAS_SUBSCRIPTION, "*"), (PULL_WAITS, "x" * LARGE)]
)
def test_a_pull_that_waits_for_messages_keeps_what_its_answer_needs(
    gateway: Gateway, flag: int, text: str
) -> None:
    """By the filter that it names, and by its member's: then what it names is not looked at."""
    gateway.has_member = True
    body, _ = gateway.pull(flag, subscription=text)
    gc.collect()
    assert gateway.pulls.waiting == 1 and body() is None
    [[held]] = gateway.pulls._held.values()
    assert held.call.command == BARE and held.fields.subscription == ""
    gateway.pulls.work(WAIT_MS)
    [(call, reply)] = gateway.answered
    assert call.command == BARE and reply.code == Response.PULL_NOT_FOUND


def test_a_pull_that_waits_for_a_heartbeat_keeps_its_fields_and_what_its_answer_needs(
    gateway: Gateway,
) -> None:
    body, reply = gateway.pull(PULL_WAITS, subscription="x" * LARGE)
    gc.collect()
    assert reply is None and body() is None and gateway.answered == []
    gateway.early.work(LATE_MS)
    [(call, late)] = gateway.answered
    assert call.command == BARE and late.code == Response.SUBSCRIPTION_NOT_EXIST


def test_a_pull_of_what_can_be_no_topic_waits_for_no_heartbeat(gateway: Gateway) -> None:
    _, reply = gateway.pull(PULL_WAITS, topic="x" * LARGE)
    assert reply is not None and reply.code == Response.SUBSCRIPTION_NOT_EXIST


def test_a_group_is_not_made_by_a_pull_whose_name_for_it_is_too_long(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(auto_create_subscription_group=True, store=tmp_path)
    settings, most = GroupSettings(config), "g" * MAX_GROUP_CHARACTERS
    for group in (most, SYSTEM_GROUP_PREFIX + "s"):
        settings.check_pull(group)
    for group in (most + "g", SYSTEM_GROUP_PREFIX + most):
        with pytest.raises(GroupNotFound):
            settings.check_pull(group)
