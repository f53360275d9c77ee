"""What a notebook shows of each thing that a program has in its hands: a small table."""

from __future__ import annotations

import asyncio
from typing import Any

import penstock
from penstock.client import GroupConsumer, MessageQuery, Producer, aio

WAIT_S = 60


def _rows(thing: Any) -> str:
    page: str = thing._repr_html_()
    assert page.startswith("<table>") and page.endswith("</table>")
    return page


def test_clients_and_what_they_give_show_themselves(broker: Any) -> None:
    group = broker.status()["endpoints"]["group"]
    with Producer(broker.produce) as producer:
        assert broker.produce in _rows(producer) and "0 without an outcome" in _rows(producer)
        producer.create_topic("shown", 1)
        assert "shown" in _rows(producer.send("shown", b"x").result(WAIT_S))
    assert "closed" in _rows(producer)
    with MessageQuery(broker.consume) as query:
        assert broker.consume in _rows(query)
    with GroupConsumer(group, group="readers", topics="shown", start="first") as member:
        assert "readers" in _rows(member) and "not joined" in _rows(member)
        (batch,) = _batches(member)
        assert "shown" in _rows(batch) and "<code>1</code>" in _rows(batch)
    with penstock.connect(store=broker.store) as connection:
        assert str(broker.store) in _rows(connection)


def _batches(member: GroupConsumer) -> list[Any]:
    found: list[Any] = []

    def handle(batch: Any) -> None:
        found.append(batch)
        member.stop()

    member.run(handle, workers=1, batch=10)
    return found


def test_those_of_coroutines_show_themselves_too(broker: Any) -> None:
    async def look() -> None:
        async with aio.connect(store=broker.store) as connection:
            assert str(broker.store) in _rows(connection)
            for each in (await connection.producer(), await connection.query()):
                assert "broker" in _rows(each)

    asyncio.run(look())
