"""What a group gives back: which topic it goes to, with which properties, and what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC_BYTES
from penstock.shared.messaging.delayed import delayed
from penstock.shared.messaging.retried import (
    MAX_REASON_CHARACTERS,
    printable,
    resent,
    retried,
    shown_topic,
)
from penstock.shared.names import MAX_PROPERTIES_BYTES

Maker = Callable[..., Record]


def resend(record: Record) -> Record:
    return resent(record, "CG")


def properties(record: Record) -> dict[str, str]:
    return decode_properties(record.properties)


def test_the_first_retry_waits_level_3_and_names_where_it_came_from(make_record: Maker) -> None:
    first = make_record(
        properties=encode_properties({"UNIQ_KEY": "K", "colour": "red"}), physical_offset=4711
    )
    again = retried(first, "CG", max_times=16)
    assert (again.topic, again.queue_id, again.reconsume_times) == ("%RETRY%CG", 0, 1)
    assert properties(again) == {
        "UNIQ_KEY": "K",
        "colour": "red",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": offset_message_id(first.store_host, 4711),
        "WAIT": "false",
        "DELAY": "3",
    }
    assert (again.body, again.born_timestamp_ms, again.born_host) == (
        *(first.body, first.born_timestamp_ms, first.born_host),
    )


@pytest.mark.parametrize("give_back", [lambda r: retried(r, "CG", max_times=1), resend])
def test_what_has_no_unique_key_gets_its_first_id_as_one(
    make_record: Maker, give_back: Callable[[Record], Record]
) -> None:
    """By it a record is found that was stored and whose answer was lost."""
    first = make_record(properties=b"", physical_offset=4711)
    again = give_back(first)
    first_id = offset_message_id(first.store_host, 4711)
    assert properties(again)["UNIQ_KEY"] == properties(again)["ORIGIN_MESSAGE_ID"] == first_id
    assert properties(give_back(replace(again, physical_offset=9)))["UNIQ_KEY"] == first_id


def test_each_retry_waits_a_level_longer_until_it_is_a_dead_letter(make_record: Maker) -> None:
    record = make_record(physical_offset=77)
    levels = []
    for _ in range(16):
        record = retried(record, "CG", max_times=16)
        levels.append(int(properties(record)["DELAY"]))
        assert record.topic == "%RETRY%CG"
    assert levels == list(range(3, 19))
    dead = retried(record, "CG", max_times=16)
    assert (dead.topic, dead.queue_id, dead.reconsume_times) == ("%DLQ%CG", 0, 17)
    told = properties(dead)
    assert (told["DELAY"], told["RETRY_TOPIC"]) == ("0", "orders")
    assert told["ORIGIN_MESSAGE_ID"] == offset_message_id(make_record().store_host, 77)


def test_retries_are_spread_over_the_groups_queues_and_copies_of_one_are_equal(
    make_record: Maker,
) -> None:
    firsts = [make_record(physical_offset=at * 256) for at in range(300)]
    again = [retried(first, "CG", max_times=16, retry_queues=3) for first in firsts]
    assert again == [retried(first, "CG", max_times=16, retry_queues=3) for first in firsts]
    found = Counter(each.queue_id for each in again)
    assert found.keys() == {0, 1, 2} and min(found.values()) > 60
    dead = [retried(first, "CG", max_times=0, retry_queues=3) for first in firsts]
    assert {each.queue_id for each in dead} == {0}


def test_a_retry_names_the_member_that_has_given_it_back_and_not_the_one_before(
    make_record: Maker,
) -> None:
    first = retried(make_record(), "CG", max_times=16, member="host@1\x01\x02#2", reason="bad")
    assert properties(first)["RETRY_MEMBER"] == "host@1 #2"
    assert properties(retried(first, "CG", max_times=16, member="b"))["RETRY_MEMBER"] == "b"
    assert "RETRY_MEMBER" not in properties(retried(first, "CG", max_times=16))
    assert not properties(resent(first, "CG")).keys() & {"RETRY_MEMBER", "RETRY_REASON"}
    full = encode_properties({"note": "x" * (MAX_PROPERTIES_BYTES - 500)})
    again = retried(make_record(properties=full), "CG", max_times=16, member="m" * 255)
    assert again.topic == "%RETRY%CG" and "RETRY_MEMBER" not in properties(again)


def test_only_a_dead_letter_still_names_where_it_last_waited_for(make_record: Maker) -> None:
    waited = {"REAL_TOPIC": "%RETRY%CG", "REAL_QID": "2"}
    record = make_record(properties=encode_properties({"note": "x"} | waited))
    again = properties(retried(record, "CG", max_times=16))
    assert again.keys() & waited.keys() == set()
    dead = properties(retried(record, "CG", max_times=0))
    assert {name: dead[name] for name in waited} == waited
    assert properties(resent(record, "CG")).keys() & waited.keys() == set()


def test_a_level_below_0_is_a_dead_letter_at_once(make_record: Maker) -> None:
    assert retried(make_record(), "CG", max_times=16, level=-1).topic == "%DLQ%CG"


@pytest.mark.parametrize(("level", "found"), [(1, "1"), (18, "18"), (40, "18"), (0, "5")])
def test_a_level_that_is_named_counts(make_record: Maker, level: int, found: str) -> None:
    record = make_record(reconsume_times=2)
    assert properties(retried(record, "CG", max_times=16, level=level))["DELAY"] == found


def test_the_way_a_message_has_come_is_not_repeated(make_record: Maker) -> None:
    came = {"TIMER_OUT_MS": "5", "REAL_TOPIC": "x", "REAL_QID": "3", "TRAN_MSG": "true"}
    record = make_record(properties=encode_properties({**came, "own": "1"}))
    found = properties(retried(record, "CG", max_times=16))
    assert not found.keys() & came.keys()
    assert found["own"] == "1"


def test_the_reason_is_kept_as_one_line(make_record: Maker) -> None:
    found = properties(retried(make_record(), "CG", max_times=16, reason="bad\norder\x01\x02 7"))
    assert found["RETRY_REASON"] == "bad order 7"


def test_a_message_with_full_properties_loses_the_reason_and_not_its_retry(
    make_record: Maker,
) -> None:
    full = encode_properties({"a": "x" * (MAX_PROPERTIES_BYTES - 500)})
    found = properties(retried(make_record(properties=full), "CG", max_times=16, reason="y" * 400))
    assert "RETRY_REASON" not in found
    assert found["RETRY_TOPIC"] == "orders"


def full(size: int, **others: str) -> bytes:
    """Properties of exactly this size."""
    raw = encode_properties({"note": "x", **others})
    return encode_properties({"note": "x" * (1 + size - len(raw)), **others})


@pytest.mark.parametrize("free", range(0, 600, 25))
def test_what_leaves_no_room_for_a_retry_is_a_dead_letter_that_says_so(
    make_record: Maker, free: int
) -> None:
    """No record of it could be stored, so its handler would be called again for ever."""
    raw = full(MAX_PROPERTIES_BYTES - free, UNIQ_KEY="K", TAGS="t")
    group = "G" * 255
    again = retried(make_record(properties=raw), group, max_times=16, reason="bad order")
    waits, found = delayed(again), properties(again)
    assert len(waits.properties) <= MAX_PROPERTIES_BYTES - PROP_CRC_BYTES
    assert (found["UNIQ_KEY"], found["TAGS"], found["RETRY_TOPIC"]) == ("K", "t", "orders")
    if waits.topic == f"%DLQ%{group}":
        assert "note" in found or found["RETRY_REASON"].startswith("its properties leave no room")
        assert "note" in found or "note (" in found["RETRY_REASON"]
    else:
        assert len(found["note"]) > 30_000, "a retry has all that its sender said"


def test_a_dead_letter_is_stored_whatever_its_properties_are_full_of(make_record: Maker) -> None:
    for name in ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "KEYS"):
        raw = encode_properties({name: "x" * 32_700})
        dead = retried(make_record(properties=raw, physical_offset=77), "CG", max_times=0)
        found, first_id = properties(dead), offset_message_id(make_record().store_host, 77)
        assert len(dead.properties) <= MAX_PROPERTIES_BYTES - PROP_CRC_BYTES
        assert (found["UNIQ_KEY"], found["RETRY_TOPIC"]) == (first_id, "orders")
        assert found["ORIGIN_MESSAGE_ID"] == first_id
        assert f"{name} (32700 characters)" in found["RETRY_REASON"]


def test_of_its_own_retries_a_group_is_shown_where_they_came_from() -> None:
    assert shown_topic("%RETRY%CG", {"RETRY_TOPIC": "orders"}, "CG") == "orders"
    assert shown_topic("%RETRY%other", {"RETRY_TOPIC": "orders"}, "CG") == "%RETRY%other"
    assert shown_topic("orders", {"RETRY_TOPIC": "x"}, "CG") == "orders"


@given(st.text())
def test_any_reason_can_be_a_property(reason: str) -> None:
    line = printable(reason)
    assert len(line) <= MAX_REASON_CHARACTERS
    if line:
        assert decode_properties(encode_properties({"R": line})) == {"R": line}
