"""Start-up: a queue that has lost its end is missed, and made again from the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.maintenance.verify import verify_store
from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.record import Record
from penstock.shared.memory.queue_table import QueueTable, create_queue_table
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.known_queues import QueueEnd, load_known_queues, replace_known_queues
from penstock.shared.recovery.cut_queues import recover_queues
from penstock.shared.store.watermark import Watermark, make_watermark

Contents = dict[str, bytes]


@pytest.fixture
def known(stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path) -> Any:
    """A clean store of two queues with six messages each, whose ends are known."""
    store = stopped_store(twelve, queue_segment_bytes=60)
    store = store._replace(config=_with_small_files(store.config))
    create_queue_table(tmp_path / "queues", 9)
    table = QueueTable(tmp_path / "queues", writable=True)
    recover_queues(store.paths, store.config, None, table)
    table.close()
    return store


def _with_small_files(config: Config) -> Config:
    import msgspec

    return msgspec.structs.replace(config, mapped_file_size_consume_queue_bytes=60)


def _queues(store: Any) -> Contents:
    root = store.paths.consume_queue
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _last(store: Any, queue: int = 0) -> Path:
    return max(store.paths.queue("orders", queue).iterdir())


def _swap(store: Any) -> None:
    one, other = store.paths.queue("orders", 0), store.paths.queue("orders", 1)
    os.rename(one, one.with_name("x"))
    os.rename(other, one)
    os.rename(one.with_name("x"), other)


HARM: dict[str, Callable[[Any], object]] = {
    "its last file is deleted": lambda store: _last(store).unlink(),
    "its directory is gone": lambda store: shutil.rmtree(_last(store).parent),
    "all files are gone": lambda store: [p.unlink() for p in _last(store).parent.iterdir()],
    "its last file is emptied": lambda store: _last(store).write_bytes(b""),
    "its last file is zeroed": lambda store: _last(store).write_bytes(bytes(60)),
    "its last entry is gone": lambda store: _last(store).write_bytes(
        _last(store).read_bytes()[:40] + bytes(20)
    ),
    "its last entry is another": lambda store: _last(store).write_bytes(
        _last(store).read_bytes()[:40] + _last(store).read_bytes()[20:40]
    ),
    "it has changed places with another": _swap,
}


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("harm", HARM)
def test_a_queue_that_is_not_as_it_is_known_to_have_been_is_made_again(
    known: Any, harm: str, unclean: bool
) -> None:
    if unclean:
        known.paths.abort.write_text("1")
    before, list_before = _queues(known), known.paths.known_queues.read_bytes()
    HARM[harm](known)
    assert _queues(known) != before
    found = known.recover()
    assert any("queue orders/0 " in each for each in found.restored_queues)
    assert _queues(known) == before
    assert known.paths.known_queues.read_bytes() == list_before
    assert not known.paths.rebuild.exists()
    again = known.recover()
    assert again.restored_queues == []
    assert (found.dispatch_from, found.scanned_from) == (again.dispatch_from, again.scanned_from)


def test_a_queue_that_is_longer_than_it_was_left_is_made_again_only_if_nobody_else_was_there(
    known: Any, make_run: Callable[[Config], Run]
) -> None:
    """RocketMQ may have gone on with it, and does not know of the list."""
    before, file = _queues(known), _last(known)
    ends = load_known_queues(known.paths.known_queues)
    fewer = {**ends, "orders/0": QueueEnd(5, known.starts()[8])}
    replace_known_queues(known.paths.known_queues, fewer)
    assert known.recover().restored_queues == []
    run = make_run(known.config)
    end = known.starts()[-1]
    words = Checkpoint(5, 6, 7)
    mark = Watermark(run.run_id, True, end, words, is_last=True)
    make_watermark(known.paths.watermark, mark)
    assert known.recover(run).restored_queues == [], "the checkpoint is not as our stop has left it"
    from penstock.shared.formats.checkpoint import encode_checkpoint

    known.paths.checkpoint.write_bytes(encode_checkpoint(words))
    assert len(known.recover(run).restored_queues) == 1
    replace_known_queues(known.paths.known_queues, ends)
    # an entry too many, of which the start would take its offset for given
    raw = file.read_bytes()
    (file.parent / f"{120:020d}").write_bytes(raw[40:] + bytes(40))
    assert len(known.recover(run).restored_queues) == 1
    assert _queues(known) == before


def test_a_queue_whose_messages_have_expired_goes_on_where_it_was(
    stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path
) -> None:
    store = stopped_store(twelve, base=3 * 4096)
    ends = {"gone/3": QueueEnd(1234, 700), "only-a-name/0": QueueEnd()}
    replace_known_queues(store.paths.known_queues, ends)
    found = store.recover()
    assert [each.split(":")[0] for each in found.restored_queues] == [
        "queue gone/3 is gone",
        "queue only-a-name/0 is gone",
    ]
    create_queue_table(tmp_path / "queues", 9)
    table = QueueTable(tmp_path / "queues", writable=True)
    assert recover_queues(store.paths, store.config, None, table) == 3
    offsets = {table.key(slot): table.max_offset(slot) for slot in range(3)}
    minima = {table.key(slot): table.min_offset(slot) for slot in range(3)}
    table.close()
    assert offsets["gone", 3] == minima["gone", 3] == 1234
    assert set(load_known_queues(store.paths.known_queues)) == {"gone/3", "orders/0", "orders/1"}
    assert store.recover().restored_queues == []
    assert verify_store(store.paths.root).problems == []


def test_lost_messages_at_the_end_of_a_lost_queue_keep_their_offsets(known: Any) -> None:
    log, records = known.log(), known.starts()
    log[records[10] + 200] ^= 4
    known.write_log(log)
    shutil.rmtree(known.paths.queue("orders", 0))
    known.paths.abort.write_text("1")
    found = known.recover()
    assert [each.position for each in found.quarantined] == [records[10]]
    assert len(found.restored_queues) == 1
    raw = _last(known).read_bytes()
    assert int.from_bytes(raw[40:48], "big") == records[10], "its entry points to the damage"


def test_names_that_are_no_queues_are_not_missed(known: Any) -> None:
    with known.paths.known_queues.open("ab") as file:
        file.write(b"../3\nno topic/0\n\xff/1\n")
    assert known.recover().restored_queues == []
