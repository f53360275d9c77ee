"""Start-up of the index: it holds every key of the log, once, whatever happened before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.index_layout import HEADER, Geometry, decode_header
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.index.directory import check_index_sizes, index_files, index_geometry
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import Damage
from penstock.shared.memory.run_directory import Run
from penstock.shared.recovery import mend_index
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.recovery.recover_index import (
    index_is_rebuilt,
    keep_index_state,
    recover_index,
)
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

TINY = Geometry(5, 12)
COUNT = 40


class Indexed:
    """A store of 40 records with a key each, with the index that the log gives."""

    def __init__(self, paths: StorePaths, config: Config, run: Run, recover: Any) -> None:
        self.paths = paths
        self.config = msgspec.structs.replace(
            config,
            store_path_root_dir=str(paths.root),
            max_hash_slot_num=TINY.slots,
            max_index_num=TINY.items,
        )
        self.run = run
        self._recover = recover
        self.remark = ""
        self.whole = self.rebuild()

    def rebuild(self) -> list[bytes]:
        shutil.rmtree(self.paths.index, ignore_errors=True)
        with StoreDirectory(self.paths.root) as store:
            index, staging = self.paths.index, self.paths.staging
            rebuild_index(store, index, staging, TINY, lambda: 0)
        return self.contents()

    def contents(self) -> list[bytes]:
        return [path.read_bytes() for path in index_files(self.paths.index)]

    def ended(self, *, unclean: bool, run: Run | None = None) -> None:
        """A run of Penstock has had the store, and has stopped or was killed."""
        keep_index_state(self.paths, self.config, run or self.run, self.recovered().log_end)
        if unclean:
            self.paths.abort.write_text(str((run or self.run).supervisor_pid))

    def recovered(self, **changes: object) -> Recovered:
        return msgspec.structs.replace(self._recover(), **changes)

    def start(self, **changes: object) -> list[bytes]:
        """A start's recovery; what the index holds then."""
        recovered = self.recovered(**changes)
        before = len(os.listdir("/proc/self/fd"))
        with StoreSurvey(self.paths, self.config) as survey:
            self.remark = recover_index(survey, recovered, self.run, 0)
        assert len(os.listdir("/proc/self/fd")) <= before, "no file stays open"
        return self.contents()


@pytest.fixture
def indexed(
    stopped_store: Callable[..., Any],
    make_record: Callable[..., Record],
    make_run: Callable[..., Run],
    make_config: Callable[..., Config],
    tmp_path: Path,
) -> Callable[[], Indexed]:
    run = make_run(make_config())

    def make() -> Indexed:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        store = stopped_store(
            [
                make_record(properties=encode_properties({"UNIQ_KEY": f"u{number}"}))
                for number in range(COUNT)
            ]
        )
        return Indexed(store.paths, store.config, run, store.recover)

    return make


def test_after_an_orderly_stop_of_ours_nothing_is_read_or_changed(
    indexed: Callable[[], Indexed], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = indexed()
    store.ended(unclean=False)
    monkeypatch.delattr(mend_index, "repair_index")
    assert store.start() == store.whole and store.remark == ""


@settings(max_examples=15)
@given(st.integers(0, 3 * (TINY.items - 1)), st.data())
def test_after_a_crash_of_ours_items_below_the_confirmed_record_are_enough(
    indexed: Callable[[], Indexed], confirmed: int, data: st.DataObject
) -> None:
    """Whatever the disk has of header, slots, and the items after: a power failure's choice."""
    store = indexed()
    store.ended(unclean=True)
    # a time from before a start cut them may call files full that are no more
    late = data.draw(st.booleans())
    words = Checkpoint(index_timestamp_ms=1 << 50 if late else 0)
    store.paths.checkpoint.write_bytes(encode_checkpoint(words))
    with StoreDirectory(store.paths.root) as opened:
        starts = [step[0] for step in opened.scan_log() if step[1] is Kind.RECORD]
    dispatch_from = starts[confirmed]
    kept = confirmed
    for path in index_files(store.paths.index):
        raw = bytearray(path.read_bytes())
        whole = min(kept, TINY.items - 1)
        kept -= whole
        if whole == TINY.items - 1 and (late or data.draw(st.booleans())):
            continue
        _lose(raw, whole, data)
        path.write_bytes(raw)
    recovered = {"mode": "unclean", "dispatch_from": dispatch_from}
    store.start(**recovered)
    again = store.start(**recovered)
    items = [decode_header(raw).next_item - 1 for raw in again]
    assert sum(items) == confirmed
    for raw, expected, count in zip(again, store.whole, items, strict=False):
        if count == TINY.items - 1:
            assert raw == expected
        at = TINY.item_at(count + 1)
        assert raw[TINY.table_bytes : at] == expected[TINY.table_bytes : at]
        assert not any(raw[at:])


def test_when_all_processes_died_the_index_stays_for_the_next_reput_to_cut(
    indexed: Callable[[], Indexed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel still has all that was written; making it again takes seconds with large files."""
    store = indexed()
    store.ended(unclean=True)
    died = {"mode": "unclean", "dispatch_from": 0, "from_memory": True}
    lost = (Damage(0, 100, "log", 0, "lost"),)
    monkeypatch.delattr(mend_index, "repair_index")
    assert store.start(**died) == store.whole
    with pytest.raises(ImportError):  # what the log has lost must go
        store.start(**died, quarantined=lost)
    store.config = msgspec.structs.replace(store.config, message_index_enable=False)
    with pytest.raises(ImportError):  # nobody is there to cut
        store.start(**died)


def _lose(raw: bytearray, whole: int, data: st.DataObject) -> None:
    """Of header, slots and the items after `whole`, the disk may have an older state."""
    begin = raw[:40]
    if data.draw(st.booleans()):
        raw[40 : TINY.table_bytes] = bytes(TINY.table_bytes - 40)
    for number in range(whole + 1, TINY.items):
        if data.draw(st.booleans()):
            raw[TINY.item_at(number) : TINY.item_at(number + 1)] = bytes(20)
    if data.draw(st.booleans()):
        # times and offset of item 1 are there since the file was synced first
        raw[:40] = begin[:8] + begin[:8] + begin[16:24] + begin[16:24] + bytes([0, 0, 0, 1] * 2)


@pytest.mark.parametrize("state", ["none", "of another run", "damaged"])
def test_an_unclean_store_of_unknown_hands_loses_its_newer_files_and_gets_them_again(
    indexed: Callable[[], Indexed], state: str
) -> None:
    """RocketMQ's rule for what to trust; and then what the log has, which RocketMQ leaves lost."""
    store = indexed()
    if state == "of another run":
        store.ended(unclean=True, run=msgspec.structs.replace(store.run, run_id="another"))
    elif state == "damaged":
        store.paths.index_state.write_bytes(b"{")
    store.paths.abort.write_text("4711")
    first_end = decode_header(store.whole[0]).end_timestamp_ms
    page = encode_checkpoint(Checkpoint(0, 0, first_end))
    store.paths.checkpoint.write_bytes(page)
    for path in index_files(store.paths.index)[1:]:
        path.write_bytes(os.urandom(8) * (TINY.file_bytes // 8) + b"\x7f" * (TINY.file_bytes % 8))
        _set_end(path, first_end + 1)
    assert store.start(mode="unclean", dispatch_from=store.recovered().log_end) == store.whole


def _set_end(path: Path, end_ms: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[8:16] = end_ms.to_bytes(8, "big")
    path.write_bytes(raw)


def test_a_crashed_run_whose_files_a_rocketmq_dropped_since_is_unknown_too(
    indexed: Callable[[], Indexed],
) -> None:
    store = indexed()
    store.ended(unclean=True)
    index_files(store.paths.index)[-1].unlink()
    page = encode_checkpoint(Checkpoint(0, 0, 1 << 60))
    store.paths.checkpoint.write_bytes(page)
    assert store.start(mode="unclean", dispatch_from=store.recovered().log_end) == store.whole


@pytest.mark.parametrize("left", [0, 1, 3])
def test_what_an_index_lacks_at_its_end_is_put_in(
    indexed: Callable[[], Indexed], left: int
) -> None:
    """A RocketMQ dropped it, or a run without message_index_enable did not write it."""
    store = indexed()
    for path in index_files(store.paths.index)[left:]:
        path.unlink()
    assert store.start() == store.whole and store.remark == ""


def test_much_is_not_put_in_but_said(
    indexed: Callable[[], Indexed], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = indexed()
    root = store.paths.root.with_name("my store")
    root.symlink_to(store.paths.root)
    store.paths = StorePaths(root)
    store.config = msgspec.structs.replace(store.config, store_path_root_dir=str(root))
    monkeypatch.setattr(mend_index, "CATCH_UP_BYTES", 1000)
    files = index_files(store.paths.index)
    files[-1].unlink()
    assert store.start() == store.whole[:-1]
    assert "are not in the index" in store.remark
    assert store.remark.endswith(f"penstock store rebuild '{root}' --index")


def test_an_index_rebuilt_since_the_crash_is_kept(
    indexed: Callable[[], Indexed], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = indexed()
    store.paths.abort.write_text("4711")
    store.paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint()))
    index_is_rebuilt(store.paths)
    monkeypatch.delattr(mend_index, "index_log")
    assert store.start(mode="unclean", dispatch_from=store.recovered().log_end) == store.whole
    store.paths.abort.write_text("4712")  # another broker has had it
    monkeypatch.setattr(mend_index, "CATCH_UP_BYTES", 0)
    assert store.start(mode="unclean", dispatch_from=store.recovered().log_end) == []


def test_entries_that_will_come_again_go(indexed: Callable[[], Indexed]) -> None:
    store = indexed()
    store.ended(unclean=False)
    found = store.start(dispatch_from=decode_header(store.whole[1]).begin_offset)
    assert found == store.whole[:1]


def test_without_message_index_enable_only_what_the_log_lost_goes(
    indexed: Callable[[], Indexed],
) -> None:
    store = indexed()
    store.config = msgspec.structs.replace(store.config, message_index_enable=False)
    assert store.start(dispatch_from=0, mode="unclean") == store.whole
    begin = decode_header(store.whole[1]).begin_offset
    assert store.start(dispatch_from=0, log_end=begin) == store.whole[:1]
    shutil.rmtree(store.paths.index)
    assert store.start() == [] and not store.paths.index.exists()


def test_an_empty_last_file_goes_and_another_geometry_is_named(
    indexed: Callable[[], Indexed],
) -> None:
    store = indexed()
    store.ended(unclean=False)
    (store.paths.index / "29991231235959999").touch()
    assert store.start() == store.whole
    store.config = msgspec.structs.replace(store.config, max_index_num=TINY.items + 1)
    with pytest.raises(StoreDamaged, match="rebuild .* --index"):
        check_index_sizes(store.paths.index, index_geometry(store.config))


def test_a_file_that_counts_more_items_than_it_has_room_for_is_moved_away_and_named(
    indexed: Callable[[], Indexed],
) -> None:
    store = indexed()
    store.ended(unclean=False)
    broken = index_files(store.paths.index)[0]
    with broken.open("r+b") as file:
        fields = HEADER.unpack(file.read(HEADER.size))
        file.seek(0)
        file.write(HEADER.pack(*fields[:-1], TINY.items + 1))
    store.start()
    assert broken.name in store.remark and "its header is damaged" in store.remark
    assert broken.name not in {path.name for path in index_files(store.paths.index)}


def test_an_empty_file_before_others_is_damage(indexed: Callable[[], Indexed]) -> None:
    store = indexed()
    os.truncate(index_files(store.paths.index)[0], 0)
    with pytest.raises(StoreDamaged, match="has 0 bytes"):
        check_index_sizes(store.paths.index, index_geometry(store.config))
