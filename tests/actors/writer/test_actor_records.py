"""The writer's records: batches as a whole, addresses of both kinds, and checksums of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.writer import Writer
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import Shape, blank_size
from penstock.shared.wire.messages import Appended, Refused

SEGMENT_BYTES = 64 << 10


@pytest.mark.parametrize("broker_ip", ["127.0.0.1", "2001:db8::2"])
@pytest.mark.parametrize("prop_crc", [False, True])
def test_records_have_the_brokers_address_and_a_checksum_where_it_makes_one(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    client: Callable[..., Any],
    broker_ip: str,
    prop_crc: bool,
) -> None:
    broker = pipeline(broker_ip=broker_ip, enabled_append_prop_crc=prop_crc)
    broker.allocate(1)
    writer, committer = broker.start(Writer), broker.start(Committer)
    producer = client(broker, writer)
    welcome = producer.hello(stored_after=0)
    shape = Shape(welcome.store_host_bytes, welcome.prop_crc)
    assert shape == Shape(20 if ":" in broker_ip else 8, prop_crc)
    (answer,) = producer.append([b"a", b"bb"], keys="k-", shape=shape)
    assert isinstance(answer, Appended)
    broker.clock.advance(200)
    work(committer)
    log, at = broker.log(0, broker.positions["wrote"]), 0
    for body in (b"a", b"bb"):
        checksum = Checksum.RECORD if prop_crc else Checksum.BODY
        found, size, reason = examine(log, at, len(log), position=at, checksum=checksum)
        assert (found, reason) == (Kind.RECORD, "")
        record = decode_record(log[at : at + size])
        assert (record.body, record.store_host) == (body, answer.store_host)
        at += size
    assert at == len(log)
    for other in {Shape(), Shape(20), Shape(8, True), Shape(20, True)} - {shape}:
        (refused,) = producer.append([b"c"], shape=other)
        assert isinstance(refused, Refused) and refused.status == "MESSAGE_ILLEGAL", other
    assert broker.positions["wrote"] == len(log)


@pytest.mark.parametrize(
    "property_text", [b"DELAY\x013\x02", b"x\x01y\x02__CRC32#\x01123\x02", b"x\x01y\0"]
)
def test_what_only_a_broker_may_set_is_refused_and_in_a_body_it_is_nothing(
    pipeline: Callable[..., Any], client: Callable[..., Any], property_text: bytes
) -> None:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    (refused,) = producer.append([b"a"], raw_properties=property_text)
    assert isinstance(refused, Refused) and refused.status == "MESSAGE_ILLEGAL"
    assert broker.positions["wrote"] == 0
    (answer,) = producer.append([property_text])
    assert isinstance(answer, Appended)
    for none in (b"0", b"-1"):
        properties = b"DELAY\x01" + none + b"\x02XDELAY\x013\x02"
        (answer,) = producer.append([b"a"], raw_properties=properties)
        assert isinstance(answer, Appended), "no delay, and another name another property"


def test_a_level_that_is_no_number_is_not_what_the_sender_is_told_to_use(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    for level, hint in (("3", "send it with delay_level=3"), ("²", "levels go from 1 to 18")):
        (refused,) = producer.append([b"a"], raw_properties=f"DELAY\x01{level}\x02".encode())
        assert isinstance(refused, Refused) and refused.hint == hint


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_a_batch_that_does_not_fit_the_segment_begins_in_the_next(
    pipeline: Callable[..., Any], work: Callable[..., None], client: Callable[..., Any], pool: bool
) -> None:
    """The blank takes the place of the whole attempt, also of what would have fitted."""
    broker = pipeline(transient_store_pool_enable=pool, max_message_size_bytes=60 << 10)
    broker.allocate(3)
    writer, committer = broker.start(Writer), broker.start(Committer)
    producer = client(broker, writer)
    producer.append([bytes(40_000)])
    end = broker.positions["wrote"]
    (answer,) = producer.append([bytes(9_000)] * 3, batch=True)
    ((first, queue_offset, physical),) = [
        (run.first, run.queue_offset, run.physical_offset) for run in answer.runs
    ]
    assert (first, queue_offset, physical) == (0, 1, SEGMENT_BYTES)
    (after,) = producer.append([b"x"])
    assert after.runs[0].queue_offset == 4
    (refused,) = producer.append([bytes(31 << 10)] * 2, batch=True)
    assert isinstance(refused, Refused) and "the batch is larger than 61440 bytes" in refused.what
    broker.clock.advance(200)
    work(committer)
    assert blank_size(memoryview(broker.log(end, SEGMENT_BYTES))) == SEGMENT_BYTES - end


def test_a_batch_that_ends_with_the_segments_blank_stays_in_it(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(max_message_size_bytes=64 << 10)
    broker.allocate(3)
    producer = client(broker, broker.start(Writer))
    left = SEGMENT_BYTES - 8
    sizes = [left // 2 - 97, left - left // 2 - 97]  # a record's 91 bytes, and 6 of its topic
    (answer,) = producer.append([bytes(size) for size in sizes], batch=True)
    assert answer.runs[0].physical_offset == 0 and broker.positions["wrote"] == left
    (answer,) = producer.append([b""] * 2, batch=True)
    assert answer.runs[0].physical_offset == SEGMENT_BYTES
    wrote = broker.positions["wrote"]
    (refused,) = producer.append([bytes(size + 1) for size in sizes], batch=True)
    assert isinstance(refused, Refused) and refused.status == "MESSAGE_ILLEGAL"
    assert broker.positions["wrote"] == wrote


def test_a_retried_batch_is_stored_once_and_whole(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """Whether all of it was stored, or by a power failure its beginning."""
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    producer.append([b"0", b"1"], keys="torn-")
    producer.append([b"0", b"1", b"2"], keys="whole-", batch=True)
    producer.hello(stored_after=0)
    wrote = broker.positions["wrote"]
    (answer,) = producer.append([b"0", b"1", b"2"], keys="whole-", batch=True, retry=True)
    assert [run.queue_offset for run in answer.runs] == [2, 3, 4]
    assert broker.positions["wrote"] == wrote
    (answer,) = producer.append([b"0", b"1", b"2"], keys="torn-", batch=True, retry=True)
    assert [(run.first, run.queue_offset) for run in answer.runs] == [(0, 0), (1, 1), (2, 5)]
