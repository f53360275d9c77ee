"""A short sample of a disk that lies: the long run is `penstock chaos --faults damage`."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from penstock.chaos.arena import growing_store
from penstock.chaos.stepped.placed import Key, read_placed
from penstock.chaos.storage.damage import Task, check_copies
from penstock.chaos.storage.harm import HARM, Scene, do_harm
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.run_directory import Endpoints, Run, write_run

pytestmark = pytest.mark.takes(60)

LEFT = ("stopped", "killed", "killed, its memory gone", "without power")
SEEDS = range(8)
LOG = [f"commitlog/{segment_name(base)}" for base in (0, 4096)]


@pytest.mark.parametrize("left", LEFT)
def test_no_intact_message_is_lost_in_silence_and_no_offset_is_given_twice(
    tmp_path: Path, left: str
) -> None:
    dice = random.Random(LEFT.index(left))
    with growing_store(tmp_path, dice, left) as (store, earlier, config):
        task = Task(Scene(store, earlier), config, left, list(SEEDS))
        outcomes = check_copies(task)
    assert len(outcomes) == len(SEEDS) and all(what for what, _ in outcomes)
    assert [wrong for _, wrong in outcomes if wrong] == []


def test_a_seed_makes_the_same_messages_again(tmp_path: Path) -> None:
    """What of them has expired goes by where segments end, and so by what came in one frame."""
    found = []
    for name in ("once", "again"):
        with growing_store(tmp_path / name, random.Random(3), "killed") as (store, earlier, _):
            found.append([_messages(store), _messages(earlier)])
    for once, again in zip(*found, strict=True):
        both = once.keys() & again.keys()
        assert both and {key: once[key] for key in both} == {key: again[key] for key in both}
        assert _ends(once) == _ends(again)


def _messages(store: Path) -> dict[Key, bytes]:
    """Of the load: others wait for a time, or are marked with one."""
    return {each.key: each.sent.digest for each in read_placed(store) if each.is_load}


def _ends(messages: dict[Key, bytes]) -> dict[tuple[str, int], int]:
    return {key[:2]: key[2] for key in sorted(messages)}


@pytest.mark.parametrize("kind", HARM)
def test_each_kind_of_harm_says_what_it_has_changed(tmp_path: Path, kind: str) -> None:
    for name in ("now", "earlier"):
        for path in (*LOG, "consumequeue/t/0/00", "config/topics.json"):
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(f"{name} {path}".encode() * 20)
        for path in LOG:
            raw = encode_record(Record("t", path.encode())) + name.encode()
            (tmp_path / name / path).write_bytes(raw.ljust(4096, b"\0"))
        (tmp_path / name / "checkpoint").write_bytes(bytes(4096))
        (tmp_path / name / "penstock").mkdir()
        (tmp_path / name / "penstock" / "watermark").write_bytes(f"{name}".encode())
        (tmp_path / name / "penstock" / "queues").write_bytes(b"t/0 00 00 crc\n")
        sizes = {"max_hash_slot_num": 200, "max_index_num": 500}
        (tmp_path / name / "penstock" / "geometry.json").write_bytes(msgspec.json.encode(sizes))
        run = Run("0" * 16, "boot", "/nowhere", 1, 0, Endpoints("a", "b", "c", "d"), True)
        write_run(StorePaths(tmp_path / name), run)
    root = tmp_path / "now"

    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    before, scene = contents(), Scene(root, tmp_path / "earlier")
    hits = []
    for seed in range(50):
        hits = HARM[kind][0](scene, random.Random(seed))
        if hits:
            break
    after = contents()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed and changed <= {str(hit.file) for hit in hits}
    assert not [hit.file for hit in hits if hit.what == "deleted" and hit.file.exists()]
    assert do_harm(scene, random.Random(3)), "there is always something to be done"
