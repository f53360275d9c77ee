"""Rows of a poll are what its messages are: of any part, and through each kind of consumer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.client import BatchMessage, Consumer, GroupConsumer, Producer, aio
from penstock.client.arrow.columns import SCHEMA, Columns
from penstock.client.core.message import Part
from penstock.shared.errors import ConfigError, MissingDependency, StoreDamaged, UnreadableBody
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.properties import LOST, encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_layout import (
    AT_BODY_V4,
    BODY_LENGTH_BYTES,
    PROPERTIES_LENGTH_BYTES,
)

WAIT_S = 60

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
properties = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "b"]), texts)
hosts = st.sampled_from([pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)])
records = st.builds(
    Record,
    topic=st.just("orders"),
    body=st.binary(max_size=50),
    properties=properties.map(encode_properties),
    queue_id=st.just(3),
    physical_offset=st.integers(0, 2**62),
    born_timestamp_ms=st.integers(0, 2**62),
    store_timestamp_ms=st.integers(0, 2**40),
    born_host=hosts,
    store_host=hosts,
)


def rows_of(found: Sequence[Any]) -> list[dict[str, Any]]:
    """What each message says by itself; times in ms, and None for what no column can show."""
    return [
        {
            "topic": each.topic,
            "queue_id": each.queue_id,
            "queue_offset": each.queue_offset,
            "physical_offset": each.physical_offset,
            "keys": each.keys,
            "tags": each.tags,
            "body": each.body,
            "born_timestamp": shown(each.born_timestamp_ms),
            "store_timestamp": shown(each.store_timestamp_ms),
            "properties": dict(each.properties),
        }
        for each in found
    ]


def shown(time_ms: int) -> int | None:
    return time_ms if time_ms < 253_402_300_800_000 else None


def rows(made: pa.RecordBatch) -> list[dict[str, Any]]:
    made.validate(full=True)
    assert made.schema == SCHEMA
    for name in ("born_timestamp", "store_timestamp"):
        at = made.schema.names.index(name)
        made = made.set_column(at, name, made.column(name).cast(pa.int64()))
    found = made.to_pylist()
    for each in found:
        each["properties"] = dict(each["properties"])
        for name in ("born_timestamp", "store_timestamp"):
            each[name] = None if each[name] is None else each[name] // 1000
    return found


def part_of(made: Sequence[Record], before: bytes = b"") -> Part:
    raw = b"".join(
        encode_record(replace(each, queue_offset=7 + 2 * place)) for place, each in enumerate(made)
    )
    payload = memoryview(before + raw + b"of another part")
    place = len(before), len(before) + len(raw)
    return Part(3, 7, 7 + 2 * len(made), 1 << 40, payload, place)


@given(st.lists(records, max_size=8), st.binary(max_size=9))
def test_the_rows_of_a_part_are_its_messages(made: list[Record], before: bytes) -> None:
    part, columns = part_of(made, before), Columns(None, MAX_BODY_BYTES, "orders")
    messages, _ = part.messages(MAX_BODY_BYTES)
    found, marked = columns.of_part(part)
    assert not marked
    assert rows(columns.together(found)) == rows_of(messages)
    assert rows(columns.together(columns.of_messages(messages))) == rows_of(messages)
    both = columns.together([*found, *columns.of_messages(messages)])
    assert rows(both) == rows_of(messages) * 2


def test_a_part_that_may_hold_a_tombstone_has_no_rows() -> None:
    lost = Record("orders", b"", encode_properties({LOST: "true"}), queue_id=3)
    assert Columns(None, MAX_BODY_BYTES, "orders").of_part(part_of([lost])) == ([], True)


def test_a_body_length_that_leaves_a_topic_no_room_at_the_end_of_what_was_read_is_damage() -> None:
    raw = bytearray(encode_record(Record("a", b"body", b"K\x01\x01ab", queue_id=3)))
    room = len(raw) - AT_BODY_V4 - 1 - PROPERTIES_LENGTH_BYTES
    # by it the topic is the first byte of the last two
    raw[AT_BODY_V4 - BODY_LENGTH_BYTES : AT_BODY_V4] = room.to_bytes(BODY_LENGTH_BYTES, "big")
    part = Part(3, 0, 1, 1 << 40, memoryview(raw), (0, len(raw)))
    with pytest.raises(UnreadableBody):
        Columns(["body"], MAX_BODY_BYTES, "a").of_part(part)


def test_a_damaged_record_is_told_as_a_message_would_tell_it() -> None:
    part = part_of([Record("orders", b"whole", queue_id=3), Record("orders", b"later", queue_id=3)])
    columns = Columns(["body"], MAX_BODY_BYTES, "orders")
    bent = part._replace(payload=bytes(part.payload).replace(b"later", b"laser"))
    with pytest.raises(UnreadableBody):
        columns.of_part(bent)
    other = part._replace(payload=bytes(part.payload).replace(b"orders", b"others"))
    with pytest.raises(StoreDamaged, match="7 of orders/3"):
        columns.of_part(other)
    with pytest.raises(StoreDamaged, match="leads to no message"):
        columns.of_part(part._replace(stop=8))


def test_a_column_that_is_not_there_is_refused_before_anything_is_taken(
    broker: Any, topic: str
) -> None:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        with pytest.raises(ConfigError, match="there is no such column: quue_id"):
            consumer.poll_arrow(WAIT_S, ["quue_id"])
        assert consumer.poll_arrow(WAIT_S, ["body", "topic"]).schema.names == ["body", "topic"]


@pytest.fixture(scope="module")
def topic(broker: Any) -> str:
    """Of three queues: plain messages, compressed ones, with and without tags and properties."""
    with Producer(broker.produce, compression="zlib") as producer:
        producer.create_topic("rows", 3)
        for number in range(60):
            body = b"%d" % number + b"." * 5000 * (number % 7 == 6)
            more: dict[str, Any] = {"properties": {"number": str(number)}} if number % 3 else {}
            tags = ("even", "odd", None)[number % 3]
            producer.send("rows", body, queue=number % 3, tags=tags, keys=f"k{number}", **more)
        producer.send_batch("rows", [BatchMessage(b"a", tags="even"), BatchMessage(b"b")], queue=1)
    return "rows"


CHOSEN: list[dict[str, Any]] = [{}, {"tags": "even"}, {"sql": "number > 20"}, {"direct": False}]


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("end", [None, 9])
def test_a_consumer_polls_rows_as_it_polls_messages(
    broker: Any, topic: str, chosen: dict[str, Any], end: int | None
) -> None:
    def everything(poll: Callable[[Consumer], Any], size: Callable[[Any], int]) -> list[Any]:
        found = []
        with Consumer(broker.consume, topic, follow=False, **chosen) as consumer:
            if end is not None:
                consumer.end_at(end)
            while size(made := poll(consumer)):
                found.append(made)
        return found

    polled = everything(lambda consumer: consumer.poll(WAIT_S), len)
    made = everything(lambda consumer: consumer.poll_arrow(WAIT_S), lambda batch: batch.num_rows)
    expected = sorted((each for batch in polled for each in rows_of(batch)), key=place)
    assert sorted((each for batch in made for each in rows(batch)), key=place) == expected
    assert expected


def place(row: dict[str, Any]) -> int:
    return int(row["physical_offset"])


def test_a_coroutine_polls_the_same_rows(broker: Any, topic: str) -> None:
    async def run() -> list[dict[str, Any]]:
        found = []
        async with aio.Consumer(broker.consume, topic, follow=False) as consumer:
            while (made := await consumer.poll_arrow(WAIT_S)).num_rows:
                found += rows(made)
        return found

    with Consumer(broker.consume, topic, follow=False) as consumer:
        assert sorted(asyncio.run(run()), key=place) == sorted(rows_of([*consumer]), key=place)


def test_a_poll_without_messages_has_no_rows(broker: Any, topic: str) -> None:
    with Consumer(broker.consume, topic, start="latest") as consumer:
        made = consumer.poll_arrow(0)
    assert rows(made) == []


def test_members_of_a_group_poll_rows_and_commit_them(broker: Any, topic: str) -> None:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        expected = sorted(rows_of([*consumer]), key=place)
    found: list[dict[str, Any]] = []
    with GroupConsumer(store=broker.store, group="rows", topics=topic, start="first") as member:
        while len(found) < len(expected):
            made = member.poll_arrow(WAIT_S, 7)
            assert 0 < made.num_rows <= 7
            found += rows(made)
        assert sorted(found, key=place) == expected
        assert rows(member.poll_arrow(0)) == []
        member.commit()
        done = sum(offset for (of, _), offset in member.committed.items() if of == topic)
        assert done == len(expected)


def test_a_member_in_a_coroutine_polls_rows_and_retries_have_their_first_topic(
    broker: Any,
) -> None:
    with Producer(broker.produce) as producer:
        producer.send("again", b"once more").result(WAIT_S)

    async def run() -> list[pa.RecordBatch]:
        found = []
        given = {"store": broker.store, "group": "again", "topics": "again", "start": "first"}
        async with aio.GroupConsumer(**given) as member:
            (message,) = await member.poll(WAIT_S)
            message.retry(delay=0.001)
            found.append(await member.poll_arrow(WAIT_S))
            found.append(await member.poll_arrow(0, columns=["body"]))
            await member.commit()
        return found

    again, empty = asyncio.run(run())
    (row,) = rows(again)
    assert (row["topic"], row["body"]) == ("again", b"once more")
    assert (empty.num_rows, empty.schema.names) == (0, ["body"])


def test_rows_that_cannot_be_made_are_not_taken_for_handled(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(broker.produce) as producer:
        producer.send("kept", b"body").result(WAIT_S)
    given: dict[str, Any] = {"store": broker.store, "group": "kept", "topics": "kept"}
    with GroupConsumer(**given, start="first") as member:
        with monkeypatch.context() as patch:
            patch.setattr(Columns, "of_messages", lambda self, found: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                member.poll_arrow(WAIT_S)
        member.commit()
        assert member.poll_arrow(WAIT_S).column("body").to_pylist() == [b"body"]


def test_without_pyarrow_one_sentence_says_what_is_missing(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("penstock.client.arrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        Consumer(broker.consume, topic, follow=False) as consumer,
        pytest.raises(MissingDependency, match=r"penstock\[arrow\]"),
    ):
        consumer.poll_arrow(WAIT_S)
