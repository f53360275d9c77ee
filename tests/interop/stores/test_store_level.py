"""What only the store's classes can make goes through Penstock and back to them.

Topics too long for version 1, IPv6 hosts of every kind, transactions of the old form, properties
without their last separator: the golden stores have them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.takes(20)

GOLDEN = Path(__file__).parent.parent.parent / "golden"
SIZES = (16 * 1024, 50 * 20, 50, 200)
APPENDED = 200
# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@pytest.mark.parametrize("name", ["clean-5.3", "crashed-5.3", "ipv6-5.3", "clean-4.9"])
def test_the_classes_open_what_penstock_appended_to(
    name: str,
    place: Any,
    penstock: Callable[..., Any],
    sides: Any,
    make_wanted: Callable[..., Any],
    produce: Callable[..., Any],
    same: Callable[..., None],
    holds: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(place.directory, **SAFELY)
    broker = penstock(
        place,
        mapped_file_size_commit_log_bytes=SIZES[0],
        mapped_file_size_consume_queue_bytes=SIZES[1],
        max_hash_slot_num=SIZES[2],
        max_index_num=SIZES[3],
    )
    small = [each for each in make_wanted("orders", 2, APPENDED, seed=1) if len(each["body"]) < 999]
    known = produce(broker, small).finish()
    broker.stop()
    stored = sides.stored(place)
    holds(stored, known)
    same(stored, sides.opened_by_classes(place, name[-3:], SIZES))
    record_property("messages", len(stored))
