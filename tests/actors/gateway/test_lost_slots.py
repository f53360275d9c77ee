"""A slot of which nothing is known costs its own message and no other, however it is read.

The queue's files are gone, and a bit has flipped in the topic of a record: no checksum covers it.
So a start that makes the queue again has no record for that slot, and no damage that it could lead
to.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, GroupConsumer, Producer
from penstock.client.aio import Consumer as AsyncConsumer
from penstock.maintenance.rebuild import rebuild_store
from penstock.remoting.codes import Request, Response
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.formats.record import decode_record
from penstock.shared.layout import StorePaths

COUNT, QUEUE, OTHER = 250, 1, 0
LOST = 100
BODIES = {queue: [b"%d:%d" % (queue, n) for n in range(COUNT)] for queue in (OTHER, QUEUE)}
WHOLE = BODIES[QUEUE][:LOST] + BODIES[QUEUE][LOST + 1 :]
TIMEOUT_S = 60


def _produce(store: Path) -> None:
    with Producer(store=store) as producer:
        producer.create_topic("orders", 2)
        for n in range(COUNT):
            for queue, bodies in BODIES.items():
                number = {"n": str(n)}
                producer.send("orders", bodies[n], queue=queue, tags="all", properties=number)


def _bend(store: Path) -> None:
    """The topic of one record becomes another, and the queue's files are gone."""
    body = BODIES[QUEUE][LOST]
    for file in (store / "commitlog").iterdir():
        log = bytearray(file.read_bytes())
        at = log.find(len(body).to_bytes(4, "big") + body)
        if at >= 0:
            log[at + 4 + len(body) + 1 + 5] ^= 1
            file.write_bytes(log)
            break
    else:
        raise AssertionError("the message is not in the log")
    shutil.rmtree(store / "consumequeue" / "orders" / str(QUEUE))


@pytest.fixture(scope="module", params=["start", "rebuild"])
def bent(
    request: Any,
    tmp_path_factory: pytest.TempPathFactory,
    start_shared_broker: Callable[..., Any],
) -> Iterator[Any]:
    """A broker that has made the queue again itself, or finds it made again."""
    place = tmp_path_factory.mktemp("bent")
    settings = {
        "gateway_enable": "true", "gateway_port": 0, "gateway_name_server_port": 0,
        # so that a queue has several files
        "mapped_file_size_consume_queue_bytes": 20 * 50,
    }  # fmt: skip
    first = start_shared_broker(place, **settings)
    _produce(first.store)
    first.stop()
    _bend(first.store)
    if request.param == "rebuild":
        config = Config(
            store_path_root_dir=str(first.store),
            mapped_file_size_commit_log_bytes=1 << 20,
            mapped_file_size_consume_queue_bytes=20 * 50,
        )
        rebuild_store(StorePaths(first.store), config, SystemClock(), queues=True, index=False)
    return start_shared_broker(place, **settings)


def _by_queue(messages: Any) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {OTHER: [], QUEUE: []}
    for each in messages:
        found[each.queue_id].append(each.body)
    return found


@pytest.mark.parametrize("chosen", [{}, {"tags": "all"}, {"sql": "n >= 0"}])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("start", [0, LOST - 1, LOST, LOST + 1])
def test_a_consumer_gets_all_others_and_counts_the_one_that_is_lost(
    bent: Any, direct: bool, chosen: dict[str, str], start: int
) -> None:
    with Consumer(
        store=bent.store, topic="orders", start=start, follow=False, direct=direct, **chosen
    ) as consumer:
        found = _by_queue(consumer)
        assert consumer.skipped == (start <= LOST)
    assert found == {
        OTHER: BODIES[OTHER][start:],
        QUEUE: [each for each in WHOLE if each in BODIES[QUEUE][start:]],
    }


def test_an_asyncio_consumer_gets_the_same(bent: Any) -> None:
    async def read() -> dict[int, list[bytes]]:
        async with AsyncConsumer(store=bent.store, topic="orders", follow=False) as consumer:
            found = _by_queue([message async for message in consumer])
            assert consumer.skipped == 1
            return found

    assert asyncio.run(read()) == {OTHER: BODIES[OTHER], QUEUE: WHOLE}


@pytest.mark.parametrize("tags", ["", "all"])
def test_a_group_gets_the_same_and_commits_past_it(bent: Any, tags: str) -> None:
    found: list[Any] = []
    group, deadline = f"group-{tags}", time.monotonic() + TIMEOUT_S
    with GroupConsumer(
        store=bent.store, group=group, topics="orders", start="first", tags=tags
    ) as member:
        while len(found) < 2 * COUNT - 1 and time.monotonic() < deadline:
            found += member.poll(1.0)
            member.commit()
    assert _by_queue(found) == {OTHER: BODIES[OTHER], QUEUE: WHOLE}


@pytest.mark.parametrize("expression", ["*", "all"])
@pytest.mark.parametrize("most", [1, 32, 1000])
def test_a_client_of_rocketmq_gets_the_same(
    bent: Any, new_peer: Callable[[str], Any], expression: str, most: int
) -> None:
    peer = new_peer(bent.status()["endpoints"]["remoting"])
    offset, found = 0, list[bytes]()
    while offset < COUNT:
        fields = {
            "consumerGroup": "g", "topic": "orders", "queueId": QUEUE, "queueOffset": offset,
            "maxMsgNums": most, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": expression, "subVersion": 0,
        }  # fmt: skip
        answer = peer.ask(Request.PULL_MESSAGE, fields)
        assert answer.code in (Response.SUCCESS, Response.PULL_RETRY_IMMEDIATELY), answer.remark
        at = 0
        while at < len(answer.body):
            record = decode_record(answer.body, at)
            assert record.queue_offset >= offset
            found.append(bytes(record.body))
            at += record.total_size
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    assert found == WHOLE
