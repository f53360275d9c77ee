"""Records that were made before they are sent: a frame has them as they are, for the broker that
there is."""

from __future__ import annotations

import pytest

from penstock.client.core.sending.encoding import Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import Frame, Sender, SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.records import RecordsFrame, Staged, StagedFrame, fit
from penstock.shared.formats.message_id import KeyOrigin, offset_message_id
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import Message, check_frame
from penstock.shared.loops.forms import Draft
from penstock.shared.messaging.staged_records import Records
from penstock.shared.wire.messages import Append, Appended, StoredRun, decode_produce_request

ORIGIN = KeyOrigin("0A" * 10, 1_698_796_800_000)
NOW_MS = ORIGIN.month_start_ms + 5
RUNS = [("orders", 3, 2), ("a", 0, 1)]
DRAFTS: list[Draft] = [b"one", (b"", b"MY_UNIQ_KEY\x01a\x02own\x01UNIQ_KEY\x02", 7, 0), b"three"]


def encoder(shape: Shape) -> Encoder:
    made = Encoder(b"\x7f\0\0\1", ORIGIN)
    made.terms.shape = shape
    return made


def records(shape: Shape) -> Records:
    by = encoder(shape)
    keys = by.numbers.several(NOW_MS, len(DRAFTS))
    runs = [("orders", 3, DRAFTS[:2], keys[:2]), ("a", 0, DRAFTS[2:], keys[2:])]
    into = bytearray(2000)
    return Records(shape, RUNS, memoryview(into)[: by.pack(into, runs)[-1]])


def contents(payload: memoryview, starts: list[int]) -> list[tuple[object, ...]]:
    found = []
    for start, stop in zip(starts, starts[1:], strict=False):
        each = Message(bytes(payload[start:stop]))
        properties = dict(each.properties)
        assert properties.pop("UNIQ_KEY")
        properties.pop("__CRC32#", None)
        found.append((each.body, properties, each.flag, each.born_timestamp_ms, each.queue_id))
    return found


@pytest.mark.parametrize("shape", [Shape(), Shape(20), Shape(8, True), Shape(20, True)])
@pytest.mark.parametrize("other", [Shape(), Shape(20, True)])
def test_records_for_another_broker_are_made_again(shape: Shape, other: Shape) -> None:
    made = records(shape)
    assert fit(made, encoder(Shape(*shape))) is made
    fitted = fit(made, encoder(other))
    assert (fitted.shape, fitted.runs) == (other, RUNS)
    queues = [(topic.encode(), queue_id, count) for topic, queue_id, count in RUNS]
    limits = (1 << 20, 1 << 20)
    found = contents(fitted.payload, check_frame(fitted.payload, queues, *limits, other))
    wanted = contents(made.payload, check_frame(made.payload, queues, *limits, shape))
    assert found == wanted


def put_around(frame: Frame, by: Encoder) -> list[SendFuture]:
    """Its first record and its last one."""
    futures = [SendFuture(Sender(None, ORIGIN), number) for number in (1, 2)]  # type: ignore[arg-type]  # nobody waits
    for future in futures:
        frame.open_runs.clear()
        frame.put("own", 0, b"mine", by.room("own", b"mine"), future, True)
    frame.close(1)
    return futures


def test_a_frame_has_them_between_its_first_and_its_last_run() -> None:
    made, by = records(Shape()), encoder(Shape())
    frame = RecordsFrame("durable", [made, made])
    put_around(frame, by)
    into = bytearray(frame.size)
    size, runs = frame.pack(by, into)
    assert [(run.topic, run.queue_id, run.count) for run in runs] == [
        ("own", 0, 1),
        *RUNS,
        *RUNS,
        ("own", 0, 1),
    ]
    assert not any(run.batch for run in runs)
    queues = [(run.topic.encode(), run.queue_id, run.count) for run in runs]
    starts = check_frame(memoryview(into)[:size], queues, 1 << 20, 1 << 20, Shape())
    assert [Message(bytes(into[a:b])).body for a, b in zip(starts, starts[1:], strict=False)] == [
        b"mine",
        *[b"one", b"", b"three"] * 2,
        b"mine",
    ]
    assert frame.runs[-1].first == 7


def test_a_frame_names_what_is_staged_and_finds_its_last_record_after_that() -> None:
    host, by = bytes(8), encoder(Shape())
    ids = tuple(offset_message_id(host, place) for place in (70, 9000))
    frame = StagedFrame("durable", Staged(ids, Shape(), 3))
    assert frame.staged == (70, 9000)
    _, last = put_around(frame, by)
    into = bytearray(frame.size)
    size, runs = frame.pack(by, into)
    assert [(run.topic, run.count) for run in runs] == [("own", 1)] * 2
    starts = check_frame(memoryview(into)[:size], [(b"own", 0, 1)] * 2, 1 << 20, 1 << 20, Shape())
    assert len(starts) == 3, "it has its own two records alone"
    header, _ = Packer(by, FrameRing(False)).append(1, 1, frame, 0)
    request = decode_produce_request(header)
    assert isinstance(request, Append) and request.staged == (70, 9000)
    stored = StoredRun(0, 5, 100), StoredRun(1, 8, 200), StoredRun(4, 6, 700)
    frame.settle(Appended(1, 1, 1, stored, 0, host), None)
    receipt = last.result()
    assert (receipt.queue_offset, receipt.physical_offset) == (6, 700)
