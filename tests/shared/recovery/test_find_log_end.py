"""Start-up: each outcome that a place of the log can have, and what becomes of the bytes there.

What a start then does with a whole store is in test_recover_log.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import damage_between
from penstock.shared.log.reader import reach_bytes
from penstock.shared.recovery.find_log_end import (
    NOWHERE,
    Bounds,
    LogEnd,
    LogWalk,
    Outcome,
    find_log_end,
)
from penstock.shared.recovery.witness import Witness
from penstock.shared.store.directory import StoreDirectory

NOTHING = memoryview(b"")
# After a power failure: nobody was told of anything, and what is on disk is not known.
POWER = Witness(Checkpoint(), may_be_torn=True, may_be_cut=True)
# A machine that stayed up: the last write may be there in part, and nothing is missing before it.
CRASH = Witness(Checkpoint(), may_be_cut=True)
UNKNOWN = Bounds()
AT = 1000


class Case(NamedTuple):
    """One step of the scan at log offset AT, with damage of 100 bytes before it or without."""

    outcome: Outcome
    kind: Kind = Kind.RECORD
    after_damage: bool = False
    bounds: Bounds = UNKNOWN
    witness: Witness = POWER
    reason: str = ""
    properties: bytes = b""


CASES = (
    Case(Outcome.KEPT),
    Case(Outcome.KEPT, Kind.BLANK),
    Case(Outcome.KEPT, bounds=Bounds(most=5000)),
    Case(Outcome.CONFIRMED, after_damage=True, witness=CRASH),
    Case(Outcome.CONFIRMED, after_damage=True, witness=POWER._replace(flushed=AT + 1)),
    Case(Outcome.CONFIRMED, after_damage=True, witness=POWER._replace(told_to=AT + 1)),
    Case(Outcome.CONFIRMED, Kind.BLANK, after_damage=True, witness=CRASH),
    Case(Outcome.CONFIRMED, after_damage=True, bounds=Bounds(left_at=AT - 99), witness=CRASH),
    Case(Outcome.DAMAGED, Kind.DAMAGED, reason="its checksum does not match"),
    Case(Outcome.DAMAGED, Kind.DAMAGED, after_damage=True, reason="its checksum does not match"),
    Case(Outcome.TORN, properties=b"A\x01b\0"),
    Case(Outcome.TORN, properties=b"A\x01" + bytes(600) + b"\x02"),
    Case(Outcome.TORN, properties=b"A\x01b\0", after_damage=True),
    Case(Outcome.KEPT, properties=b"A\x01b\0", witness=POWER._replace(flushed=AT + 1)),
    Case(Outcome.KEPT, properties=b"A\x01b\0", witness=Witness(Checkpoint())),
    Case(Outcome.KEPT, properties=b"A\x01" + bytes(100) + b"\x02"),
    Case(Outcome.OVERHANGS, bounds=Bounds(most=AT + 1)),
    Case(Outcome.OVERHANGS, Kind.BLANK, bounds=Bounds(most=AT + 1)),
    Case(Outcome.HELD, after_damage=True),
    Case(Outcome.HELD, Kind.BLANK, after_damage=True),
    Case(Outcome.HELD, after_damage=True, witness=POWER._replace(flushed=AT - 100)),
    Case(Outcome.UNWRITTEN, Kind.END),
    Case(Outcome.UNWRITTEN, Kind.END, after_damage=True),
    Case(Outcome.UNPUBLISHED, bounds=Bounds(most=AT)),
    Case(Outcome.UNPUBLISHED, Kind.DAMAGED, bounds=Bounds(most=AT - 1)),
    Case(Outcome.ABANDONED, after_damage=True, bounds=Bounds(left_at=AT - 100), witness=CRASH),
    Case(Outcome.ABANDONED, Kind.BLANK, after_damage=True, bounds=Bounds(left_at=0)),
    Case(Outcome.UNCHECKED, reason=NO_RECORD_CRC),
    Case(Outcome.UNPUBLISHED, reason=NO_RECORD_CRC, bounds=Bounds(most=AT)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.outcome.name.lower())
def test_what_stands_at_a_place_is_one_of_the_named_outcomes(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record], case: Case
) -> None:
    store = stopped_store([])
    fields = {"properties": case.properties, "physical_offset": AT}
    record = encode_record(msgspec.structs.replace(make_record(), **fields))
    with StoreDirectory(store.paths.root) as directory:
        walk = LogWalk(directory, store.config, 0, case.bounds, case.witness)
        if case.after_damage:
            walk.wait(AT - 100, 100, "a hole")
        shown = memoryview(record) if case.kind is Kind.RECORD else NOTHING
        for _ in range(2):  # to look changes nothing
            found = walk.judge(AT, case.kind, len(record), shown, case.reason)
            assert found is case.outcome


def test_the_cases_above_are_all_outcomes_but_those_of_the_end() -> None:
    at_the_end = {Outcome.TOLD, Outcome.CUT, Outcome.MISSING}
    assert {case.outcome for case in CASES} == set(Outcome) - at_the_end


def _walk(
    store: Any, hits: Sequence[int], bounds: Bounds = UNKNOWN, witness: Witness = POWER
) -> LogEnd:
    """Find the end of a store's log, of which these records are damaged."""
    log, starts = store.log(), store.starts()
    for hit in hits:
        log[starts[hit] + 100] ^= 1
    store.write_log(log)
    with StoreDirectory(store.paths.root) as directory:
        return find_log_end(directory, store.config, 0, bounds, witness)


def test_damage_at_the_end_that_nobody_was_told_of_is_a_torn_tail(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    found = _walk(store, [11])
    assert (found.end, found.last_record, found.messages) == (starts[11], starts[10], 11)
    assert found.has_torn_tail and not found.quarantined and not found.torn_records


def test_damage_at_the_end_that_somebody_may_have_been_told_of_is_quarantined(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    found = _walk(store, [11], witness=POWER._replace(told_to=starts[11] + 1))
    assert [each.position for each in found.quarantined] == [starts[11]]
    assert starts[11] < found.end == found.quarantined[-1].end <= starts[12]
    assert found.damaged and not found.has_torn_tail and found.records_end == starts[11]


def test_whole_records_in_a_torn_tail_are_counted_and_no_messages_of_the_log(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    found = _walk(store, [8])
    assert (found.end, found.messages) == (starts[8], 8)
    assert (found.torn_records, found.torn_end) == (3, starts[12])


def test_a_confirmed_record_makes_damage_of_what_was_held_and_messages_of_the_whole_ones(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    stored = [
        msgspec.structs.replace(record, store_timestamp_ms=1 if number == 11 else 99)
        for number, record in enumerate(twelve)
    ]
    store = stopped_store(stored)
    starts = store.starts()
    # by its time the last one is older than what the checkpoint says is on disk
    found = _walk(store, [8], witness=POWER._replace(checkpoint=Checkpoint(2)))
    assert [each.position for each in found.quarantined] == [starts[8]]
    assert (found.end, found.messages, found.torn_records) == (starts[12], 11, 0)
    assert (found.last_record, found.timestamp_ms) == (starts[11], 1)


def test_a_log_that_is_known_to_have_gone_on_misses_what_is_not_there(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    end = store.starts()[-1]
    for witness in (POWER, CRASH, Witness(Checkpoint())):
        found = _walk(store, [], Bounds(least=end + 50), witness)
        size = store.config.mapped_file_size_commit_log_bytes
        missing = damage_between(
            store.paths, size, end, end + 50, f"the log was written up to {end + 50}"
        )
        assert (found.quarantined, found.end, found.records_end) == (missing, end + 50, end)


@pytest.mark.parametrize("cut_at", range(13))
def test_memory_says_where_the_log_ends_whatever_whole_records_follow(
    stopped_store: Callable[..., Any], twelve: list[Record], cut_at: int
) -> None:
    store = stopped_store(twelve)
    most = store.starts()[cut_at]
    found = _walk(store, [], Bounds(least=most, most=most), Witness(Checkpoint()))
    assert (found.end, found.messages, found.damaged) == (most, cut_at, False)


def test_after_the_end_that_memory_tells_not_one_more_byte_is_looked_at(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """The rest of a warm segment may be gigabytes, and a scan would search all of it."""
    store = stopped_store(twelve)
    end = store.starts()[-1]
    last = store.paths.commit_log / segment_name(end // 4096 * 4096)
    raw = bytearray(last.read_bytes())
    raw[end % 4096 :] = b"\xff" * (4096 - end % 4096)
    last.write_bytes(raw)
    with StoreDirectory(store.paths.root) as directory:
        find_log_end(directory, store.config, 0, Bounds(end, most=end), CRASH)
        short = directory.bytes_read
        find_log_end(directory, store.config, 0, Bounds(), CRASH)
        assert directory.bytes_read - short > short, "without that bound there is more to look at"


def test_a_bound_that_is_not_known_binds_nothing(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    end = store.starts()[-1]
    assert Bounds() == (0, NOWHERE, NOWHERE)
    found = _walk(store, [], Bounds(), Witness(Checkpoint()))
    assert (found.end, found.messages, found.damaged) == (end, 12, False)


def test_a_record_without_the_checksum_that_is_asked_for_refuses_the_start(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    strict = msgspec.structs.replace(store.config, force_verify_prop_crc=True)
    before = store.contents()
    with (
        StoreDirectory(store.paths.root) as directory,
        pytest.raises(StoreDamaged, match="force_verify_prop_crc.*log offset 0"),
    ):
        find_log_end(directory, strict, 0, Bounds(), POWER)
    assert store.contents() == before


@pytest.mark.parametrize("seed", range(20))
def test_the_place_to_look_for_a_block_from_is_a_frame_before_the_end_and_not_much_more(
    stopped_store: Callable[..., Any], seed: int
) -> None:
    dice = random.Random(seed)
    sizes = [dice.randrange(200_000, 900_000) for _ in range(dice.randrange(1, 60))]
    root = stopped_store([]).paths.root
    config, record = Config(), memoryview(encode_record(Record("t", b"x")))
    with StoreDirectory(root) as store:
        walk = LogWalk(store, config, 0, Bounds(), Witness(Checkpoint()))
    positions, at = {0}, 0
    for size in sizes:
        positions.add(at)
        walk.keep(at, size, Kind.RECORD, record)
        at += size
    found, reach = walk.settle(), reach_bytes(config)
    assert found.look_from in positions
    assert found.look_from == 0 or found.end - found.look_from >= reach
    assert found.end - found.look_from <= 2 * reach + 3 * max(sizes)
