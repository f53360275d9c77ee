"""The queue table: slots are what was put into them, for everybody who maps the file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import StoreUnavailable
from penstock.shared.loops.forms import rows_of
from penstock.shared.memory.queue_table import SLOT_BYTES, QueueKey, QueueTable, create_queue_table

ENTRY = bytes(20)
offsets = st.integers(0, 2**63 - 1)
keys = st.builds(
    QueueKey,
    st.text("abcXYZ019%|-_", min_size=1, max_size=255) | st.just("%RETRY%" + "g" * 248),
    st.integers(0, 2**31 - 1),
)


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    create_queue_table(tmp_path / "queues", 8)
    return tmp_path / "queues"


@pytest.fixture
def table(table_file: Path) -> Iterator[QueueTable]:
    table = QueueTable(table_file, writable=True)
    yield table
    table.close()


@given(st.lists(st.tuples(keys, offsets, offsets, offsets), min_size=1, max_size=8))
def test_every_slot_says_what_was_put_into_it(
    tmp_path_factory: pytest.TempPathFactory, slots: list[tuple[QueueKey, int, int, int]]
) -> None:
    file = tmp_path_factory.mktemp("table") / "queues"
    create_queue_table(file, len(slots))
    table, other = QueueTable(file, writable=True), QueueTable(file)
    for slot, (key, low, high, _) in enumerate(slots):
        table.add(slot, key, low, high)
    for slot, (_, _, _, later) in list(enumerate(slots))[::2]:
        table.move_max_offsets(rows_of(slot, later, ENTRY))
    for slot in range(len(slots))[1::3]:
        table.mark_deleted(slot)
    for slot, (key, low, high, later) in enumerate(slots):
        assert other.key(slot) == key
        assert other.is_deleted(slot) == (slot % 3 == 1)
        assert other.min_offset(slot) == low
        assert other.max_offset(slot) == (high if slot % 2 else max(high, later + 1))
    with other.max_offsets() as ends:
        assert ends.tolist() == [other.max_offset(slot) for slot in range(len(slots))]
    assert list(other.keys(0, len(slots))) == [(i, each[0]) for i, each in enumerate(slots)]
    assert list(other.keys(1, 1)) == []
    table.close()
    other.close()


def test_a_full_table_is_a_typed_error_with_its_limit(table: QueueTable) -> None:
    assert table.capacity == 8
    table.add(7, QueueKey("last", 0), 0, 0)
    with pytest.raises(StoreUnavailable, match="max_queues allows: 8.*max_queues=16"):
        table.add(8, QueueKey("more", 0), 0, 0)
    assert table.key(7) == QueueKey("last", 0)


def test_who_only_looks_cannot_write(table_file: Path) -> None:
    looker = QueueTable(table_file)
    with pytest.raises((TypeError, BufferError)):
        looker.move_max_offsets(rows_of(0, 1, ENTRY))
    with pytest.raises(OSError, match="Bad file descriptor"):
        looker.add(0, QueueKey("t", 0), 0, 0)
    looker.close()


def test_a_large_table_takes_no_room_before_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    create_queue_table(file, 65536)
    assert file.stat().st_size == 65536 * SLOT_BYTES and file.stat().st_blocks == 0
    table = QueueTable(file, writable=True)
    table.add(60000, QueueKey("t", 1), 2, 3)
    table.close()
    assert file.stat().st_blocks * 512 <= 8192


def test_a_table_is_made_once(table_file: Path) -> None:
    assert table_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_queue_table(table_file, 8)


FULL_MEMORY = """\
set -e
mount -t tmpfs -o size=64k none "$0"
exec "$@"
"""
ADD = """\
import sys
from pathlib import Path
from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
place = Path(sys.argv[1])
create_queue_table(place / "queues", 65536)
table = QueueTable(place / "queues", writable=True)
with (place / "rest").open("wb", buffering=0) as rest:
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
try:
    table.add(40000, QueueKey("t", 1), 0, 0)
except OSError as error:
    print(error.errno)
"""


def test_a_full_dev_shm_is_an_error_and_no_sigbus(tmp_path: Path) -> None:
    """The table is sparse, so a new queue can need a page that is not there."""
    wrap = ("unshare", "-Urm", "sh", "-c", FULL_MEMORY, str(tmp_path))
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed")
    if subprocess.run([*wrap, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    ran = subprocess.run(
        [*wrap, sys.executable, "-c", ADD, str(tmp_path)], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, str(errno.ENOSPC)), ran.stderr


def test_a_table_that_cannot_be_mapped_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "queues").touch()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="empty"):
        QueueTable(tmp_path / "queues")
    assert len(os.listdir("/proc/self/fd")) == before
