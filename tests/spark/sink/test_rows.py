"""Rows of any schema become what `Producer.send` would make of them, or are named as wrong: with
the compiled loops and with their twin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.client import Producer
from penstock.client.core.delays import wanted_delay
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.shared.errors import PenstockError
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.properties import decode_properties, encode_properties

NOW_MS = 1_700_000_000_000
TOPICS, QUEUES = ("orders", "other"), 3
# Makes records of each batch that it is sent, with the form of the loops that its environment says.
SERVER = """
import json, sys, traceback
import numpy as np
import pyarrow as pa
from penstock.shared.formats.record import decode_record
from penstock.shared.loops.active import why_pure
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.rows import BadRow, messages_of
from penstock.shared.errors import QueueNotFound

def records(batch, topic, now_ms):
    messages = messages_of(batch, topic, producer, now_ms)
    room = bytearray(int(messages.sizes.sum()))
    order = np.arange(batch.num_rows)
    end, _ = producer.encoder.pack_rows(room, messages.rows, order.data)
    found, at = [], 0
    while at < end:
        size = int.from_bytes(room[at : at + 4], "big")
        record = decode_record(bytes(room[at : at + size]))
        parts = record.body.hex(), record.properties.hex()
        found.append((record.topic, record.queue_id, *parts))
        at += size
    return found

with SinkOptions(path=sys.argv[1]).producer() as producer:
    print(json.dumps(bool(why_pure)), flush=True)
    for line in sys.stdin:
        raw, topic, now_ms = json.loads(line)
        (batch,) = pa.ipc.open_stream(bytes.fromhex(raw))
        try:
            told = "made", records(batch, topic, now_ms)
        except BadRow as bad:
            told = "bad", bad.index
        except QueueNotFound:
            told = "bad", None
        except Exception:
            told = "raised", traceback.format_exc()
        print(json.dumps(told), flush=True)
"""
Make = Callable[[pa.RecordBatch, str], tuple[str, Any]]


@pytest.fixture(scope="module", params=["compiled", "pure"])
def make(request: pytest.FixtureRequest, start_shared_broker: Callable[..., Any]) -> Iterator[Make]:
    pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")
    store = start_shared_broker().store
    with Producer(store=store) as producer:
        for topic in TOPICS:
            producer.create_topic(topic, QUEUES)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PENSTOCK_PURE": str(int(request.param == "pure"))},
    )
    assert server.stdin is not None and server.stdout is not None
    asks, tells = server.stdin, server.stdout

    def ask(batch: pa.RecordBatch, topic: str) -> tuple[str, Any]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        raw = sink.getvalue().to_pybytes().hex()
        print(json.dumps((raw, topic, NOW_MS)), file=asks, flush=True)
        how, told = json.loads(tells.readline())
        return how, told

    assert json.loads(tells.readline()) == (request.param == "pure")
    yield ask
    asks.close()
    assert server.wait(60) == 0
    tells.close()


TEXTS = st.text("ab é😀\x01", max_size=4)
NAMES = st.sampled_from(["a", "b", "", "KEYS", "DELAY", "TIMER_DELAY_MS", "TIMER_OUT_MS"])
WHOLE = st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()])
STRINGS = st.sampled_from([pa.string(), pa.large_string()])
# as Spark has them: the zone is the session's, and Java has names for zones that Python has not
TIMES = st.sampled_from(["UTC", "Europe/Berlin", "+08:00", "PST", "GMT+8"]).map(
    lambda zone: pa.timestamp("us", zone)
)


def whole(least: int, most: int) -> Callable[[pa.DataType], st.SearchStrategy[int]]:
    def of(kind: pa.DataType) -> st.SearchStrategy[int]:
        end = 1 << kind.bit_width - 1
        return st.integers(-end, end - 1) | st.integers(least, min(most, end - 1))

    return of


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.lists(st.none() | TEXTS, max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(NAMES, st.none() | TEXTS | st.just("3"), max_size=2).map(
            lambda found: list(found.items())
        )
    return st.binary(max_size=5) if kind == pa.binary() else TEXTS


def times(_: pa.DataType) -> st.SearchStrategy[int]:
    now_us = NOW_MS * 1000
    return st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(now_us - 9, now_us + 10**10)


# of each column its types, and from one of them its values
COLUMNS: dict[str, tuple[st.SearchStrategy[pa.DataType], Callable[..., Any]]] = {
    "topic": (STRINGS, lambda _: st.sampled_from(TOPICS)),
    "tags": (STRINGS, values),
    "keys": (STRINGS | st.just(pa.list_(pa.string())), values),
    "properties": (st.just(pa.map_(pa.string(), pa.string())), values),
    "queue_id": (WHOLE, whole(0, QUEUES)),
    "sharding_key": (STRINGS, values),
    "delay_ms": (WHOLE, whole(-3, 9_000_000)),
    "deliver_at": (TIMES, times),
    "delay_level": (WHOLE, whole(0, 19)),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of some columns, mostly without nulls or mostly of them, perhaps a slice of others."""
    count = draw(st.integers(1, 4))
    kinds = {"body": draw(st.sampled_from([pa.binary(), pa.string(), pa.large_string()]))}
    arrays = [pa.array(draw(st.lists(values(kinds["body"]), min_size=count, max_size=count)))]
    arrays[0] = arrays[0].cast(kinds["body"])
    for name in draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=4)):
        types, make_values = COLUMNS[name]
        kind = draw(types)
        some = st.none() | make_values(kind)
        found = draw(st.lists(some, min_size=count, max_size=count))
        is_time = pa.types.is_timestamp(kind)
        arrays.append(pa.array(found, pa.int64()).cast(kind) if is_time else pa.array(found, kind))
        kinds[name] = kind
    whole_batch = pa.RecordBatch.from_arrays(arrays, names=list(kinds))
    return whole_batch.slice(draw(st.integers(0, count - 1)))


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Its rows with times in us: Python does not have all of them, nor their zones."""
    columns = [
        (each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each).to_pylist()
        for each in batch.columns
    ]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def expected(row: dict[str, Any], topic: str) -> tuple[str, bytes, dict[str, str]] | None:
    """Topic, body and properties of the message that `Producer.send` would make; None where it
    would refuse it."""
    body, at_us, delay_ms = row["body"], row.get("deliver_at"), row.get("delay_ms")
    shard, queue, pairs = row.get("sharding_key"), row.get("queue_id"), row.get("properties")
    topic = topic or row["topic"]
    if topic is None or queue is not None and not 0 <= queue < QUEUES:
        return None
    if shard is not None and queue is not None:
        return None
    message = BatchMessage(
        body if isinstance(body, bytes) else body.encode(), row.get("tags"), row.get("keys")
    )
    encoder = Encoder(bytes(4), KeyOrigin("0" * 22, 0))
    try:
        delay, others = wanted_delay(
            None if delay_ms is None else delay_ms / 1000,
            None if at_us is None else -(-at_us // 1000),
            row.get("delay_level"),
            None if pairs is None else dict(pairs),
            NOW_MS,
        )
        drafts = [
            encoder.draft(message, shard),
            encoder.draft(BatchMessage(b"", properties=others), None),
        ]
    except PenstockError:
        return None
    raw = b"".join(b"" if isinstance(each, bytes) else each[1] for each in drafts)
    if delay is not None:
        raw += encode_properties(delay.properties(topic, 0))
    return delay.topic if delay is not None else topic, message.body, decode_properties(raw)


IN_JAVAS_ZONE = pa.array([None, NOW_MS * 1000 + 1], pa.timestamp("us", "PST"))
FAR = pa.array([(1 << 63) - 1])


@example(pa.RecordBatch.from_arrays([["a", "b"], IN_JAVAS_ZONE], ["body", "deliver_at"]), True)
@example(pa.RecordBatch.from_arrays([["a"], FAR], ["body", "delay_ms"]), True)
@given(batch=batches(), named=st.booleans())
def test_a_row_is_what_a_send_of_it_would_be(
    make: Make, batch: pa.RecordBatch, named: bool
) -> None:
    topic = "" if "topic" in batch.schema.names and not named else TOPICS[0]
    wanted = [expected(row, topic) for row in rows_of(batch)]
    how, told = make(batch, topic)
    assert how != "raised", told
    wrong = [index for index, each in enumerate(wanted) if each is None]
    if how == "bad":
        assert told in wrong or told is None and wrong
        return
    assert not wrong
    for (name, body, properties), row, found in zip(wanted, rows_of(batch), told, strict=True):
        own = decode_properties(bytes.fromhex(found[3]))
        del own["UNIQ_KEY"]
        queue = int(own["REAL_QID"]) if "REAL_QID" in own else found[1]
        if row.get("queue_id") is None:
            own |= {"REAL_QID": "0"} if "REAL_QID" in own else {}
        else:
            assert queue == row["queue_id"]
            properties |= {"REAL_QID": str(queue)} if "REAL_QID" in properties else {}
        assert 0 <= queue < QUEUES
        assert (found[0], found[2], own) == (name, body.hex(), properties)
