"""What records in damage may say of their queues' ends, and what is not believed of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.maintenance.displaced_records import Claim, claimed_ends, claims_in
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.log.damage import Damage

QUEUE = "orders", 0
# the queue has 10 messages, the last of them just before the damage
KNOWN = [{QUEUE: (10, 900)}]
DAMAGE = [Damage(1000, 1000, "", 0, ""), Damage(5000, 1000, "", 0, "")]


def _end(*claims: tuple[int, int]) -> int:
    """Where the queue ends by records that name these places and queue offsets."""
    found = claimed_ends([Claim(at, QUEUE, slot) for at, slot in claims], DAMAGE, KNOWN)
    return found[QUEUE].end.end if found else 10


def test_each_next_message_in_damage_takes_the_end_with_it() -> None:
    assert _end((1000, 10), (1500, 11), (5000, 12)) == 13


def test_messages_between_are_believed_as_far_as_the_damage_has_room_for_them() -> None:
    assert _end((1000, 10), (5000, 21)) == 22  # 1,000 bytes are 10 messages and a part
    assert _end((1000, 10), (5000, 22)) == 11
    assert _end((1000, 10), (1500, 1 << 60), (5000, 11)) == 12  # a flipped bit


def test_an_older_copy_and_one_whose_place_is_whole_change_nothing() -> None:
    assert _end((1000, 3), (3000, 10), (700, 10)) == 10


def test_a_queue_that_the_store_does_not_know_is_none() -> None:
    assert claimed_ends([Claim(1000, ("ordert", 0), 10)], DAMAGE, KNOWN) == {}


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("is_at_home", [False, True])
def test_a_record_whose_body_is_damaged_counts_only_where_it_belongs(
    make_record: Callable[..., Record], is_at_home: bool, is_flipped: bool
) -> None:
    record = make_record(queue_id=0, body=b"x" * 50)
    raw = bytearray(
        encode_record(msgspec.structs.replace(record, queue_offset=7, physical_offset=1000))
    )
    raw[100] ^= is_flipped
    found = list(claims_in(b"\xda\xa3" * 8 + raw, 1000 - 16 if is_at_home else 4000))
    assert found == ([Claim(1000, QUEUE, 7)] if is_at_home or not is_flipped else [])
