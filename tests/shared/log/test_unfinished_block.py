"""After a power failure a block of outputs and offsets is there as a whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.log.unfinished_block import UnfinishedBlock, unfinished_block
from penstock.shared.memory.run_directory import Run
from penstock.shared.messaging.offsets_record import NONE, begin_of, move_of
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.store.watermark import Watermark, make_watermark


def own(body: bytes, properties: dict[str, str]) -> Record:
    return Record(OFFSETS_TOPIC, body, encode_properties(properties))


def block(outputs: int, size: int = 300) -> list[Record]:
    move = own(*move_of("g", {"in": {0: (NONE, 7)}}))
    if not outputs:
        return [move]
    made = [Record("out", bytes([97 + each]) * size, queue_id=each % 2) for each in range(outputs)]
    return [own(*begin_of("g", outputs + 2)), *made, move]


BLOCKS = st.lists(st.integers(0, 4), max_size=5)


@given(BLOCKS, st.integers(0, 30))
def test_only_the_last_block_and_only_an_unfinished_one_is_found(
    outputs: list[int], kept: int
) -> None:
    """Any blocks and single messages before, of a log that ends after any record: what stands
    after its end does not count."""
    made: list[tuple[Record, int]] = []  # each with where its block begins, or -1
    whole: list[int] = []
    for number in outputs:
        made.append((Record("single", OFFSETS_TOPIC.encode() * 3), -1))
        first = len(made)
        of_block = block(number)
        made += [(each, first if number else -1) for each in of_block]
        whole.append(len(made))
    steps, at = [], 0
    places: list[int] = []
    for record, _ in made:
        raw = encode_record(msgspec.structs.replace(record, store_timestamp_ms=1000 + at))
        steps.append((at, Kind.RECORD, len(raw), memoryview(raw), ""))
        places.append(at)
        at += len(raw)
    steps.append((at, Kind.BLANK, 100, memoryview(b""), ""))
    end = places[kept] if kept < len(made) else at + 100
    made = made[:kept]
    found = unfinished_block(iter(steps), end)
    first = made[-1][1] if made else -1
    if first < 0 or len(made) in whole:
        assert found is None
    else:
        before = places[first - 1]
        assert found == UnfinishedBlock(
            places[first], len(made) - first, before, places[first], 1000 + before
        )


@pytest.mark.parametrize("kept", [1, 2])
def test_the_record_before_a_block_ends_where_it_does_though_a_segment_ends_in_between(
    kept: int,
) -> None:
    """The blank of the segment before is damaged or not, and a block goes on after one, too."""
    before = encode_record(Record("single", b"x", store_timestamp_ms=1000))
    steps = [(0, Kind.RECORD, len(before), memoryview(before), "")]
    at = len(before)
    for record in block(2)[:kept]:
        for kind in (Kind.DAMAGED, Kind.BLANK):
            steps.append((at, kind, 50, memoryview(b""), ""))
            at += 50
        raw = encode_record(record)
        steps.append((at, Kind.RECORD, len(raw), memoryview(raw), ""))
        at += len(raw)
    begin = len(before) + 100
    found = unfinished_block(iter(steps), at)
    assert found == UnfinishedBlock(begin, kept, 0, len(before), 1000)


def test_a_message_of_another_topic_begins_no_block_whatever_it_says() -> None:
    (body, properties) = begin_of("g", 3)
    for topic in ("single", f"%RETRY%{OFFSETS_TOPIC}"):
        raw = encode_record(Record(topic, body, encode_properties(properties)))
        steps = [(0, Kind.RECORD, len(raw), memoryview(raw), "")]
        assert unfinished_block(iter(steps), len(raw)) is None
    own_raw = encode_record(own(body, properties))
    steps = [(0, Kind.RECORD, len(own_raw), memoryview(own_raw), "")]
    assert unfinished_block(iter(steps), len(own_raw)) is not None


@pytest.mark.parametrize("flushed", ["nothing", "all before", "more"])
@pytest.mark.parametrize("records", range(7))
@pytest.mark.parametrize("torn", [0, 40])
def test_a_start_cuts_what_is_left_of_a_block_and_keeps_it_beside(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    records: int,
    torn: int,
    flushed: str,
) -> None:
    """`records` of a block of six are there, perhaps a part of the next, in two segments."""
    before = twelve[:7]
    store = stopped_store([*before, *block(4)], unclean=True, queues=False)
    places = store.starts()
    log = store.log()
    begin, end = places[7], places[7 + records]
    assert begin < 4096 < places[-1], "the block is in two segments"
    kept = log[begin:end]
    stop = end + (torn if records < 6 else 0)
    log[stop:] = bytes(len(log) - stop)
    store.write_log(log)
    known = {"nothing": 0, "all before": begin, "more": places[9]}[flushed]
    if known > end:
        pytest.skip("what was flushed is there")
    run = msgspec.structs.replace(make_run(store.config), boot_id="another")
    shutil.rmtree(run.path)  # the machine went down
    store.paths.abort.write_text(str(run.supervisor_pid))
    make_watermark(store.paths.watermark, Watermark(run.run_id, True, known, Checkpoint()))
    found = store.recover(run)
    is_cut = 0 < records < 6 and flushed != "more"
    assert found.log_end == (begin if is_cut or not records else end)
    assert found.torn_records == (records if is_cut else 0)
    assert found.messages == 7 + (0 if is_cut else records)
    assert found.last_record == (places[6] if is_cut else places[6 + records])
    assert not found.quarantined
    assert store.log()[: found.log_end] == log[: found.log_end]
    assert not any(store.log()[found.log_end :])
    if is_cut:
        (beside,) = store.paths.quarantine.iterdir()
        assert beside.read_bytes() == kept
    contents = store.contents()
    again = store.recover(run)
    assert (again.log_end, again.torn_records) == (found.log_end, 0)
    assert store.contents() == contents


@pytest.mark.parametrize("queues", [True, False])
def test_a_clean_store_is_not_looked_through(
    stopped_store: Callable[..., Any], queues: bool
) -> None:
    store = stopped_store(block(2)[:2], queues=queues)
    assert store.recover().log_end == store.starts()[-1]
