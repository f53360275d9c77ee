"""What a start does with files that do not belong: it says which and what to do, or leaves them.

Strict where RocketMQ refuses to start, lenient where it looks away. Nothing is destroyed: what was
there before is there afterwards.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.clock import SystemClock
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import Record
from penstock.shared.layout import segment_name
from penstock.shared.memory.roster import ROSTER
from penstock.shared.memory.run_directory import read_run, remove_run_directory
from penstock.shared.recovery.open_store import open_store

SEGMENT = 4096
OURS = re.compile("penstock/.*|abort|lock")


def _tree(root: Path) -> dict[str, object]:
    """What is in a store, apart from what every start writes."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and not OURS.fullmatch(name):
            found[name] = path.read_bytes()
        elif stat.S_ISLNK(mode) or stat.S_ISFIFO(mode):
            found[name] = stat.S_IFMT(mode)
    return found


@pytest.fixture
def torn(stopped_store: Callable[..., Any], twelve: list[Record]) -> Iterator[Any]:
    """An unclean store with a torn tail, which a start that goes on would cut."""
    store = stopped_store(twelve, unclean=True)
    end = store.starts()[-1]
    log = store.log()
    log[end : end + 9] = b"torn tail"
    store.write_log(log)
    (store.paths.root / "config").mkdir()
    yield store
    run = read_run(store.paths) if store.paths.run.is_file() else None
    if run is not None:
        remove_run_directory(run)


def _open(store: Any) -> None:
    opened = open_store(store.config, SystemClock())
    opened.positions.close()
    for row in ROSTER:
        if row.serves:
            opened.listeners.close_for(row.name)
    os.close(opened.lock)


def _file_in_place(path: Path) -> None:
    for child in sorted(path.rglob("*"), reverse=True) if path.is_dir() else ():
        child.rmdir() if child.is_dir() else child.unlink()
    if path.is_dir():
        path.rmdir()
    path.write_text("a file")


def _directory_in_place(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


LOG_2, QUEUE = f"commitlog/{segment_name(2 * SEGMENT)}", "consumequeue/orders/0/"
CUT = re.compile("consumequeue/orders/[01]/[0-9]{20}")
REFUSED: list[tuple[str, Callable[[Path], object], str]] = [
    ("commitlog/notes.txt", lambda p: p.write_text("x"), "penstock store repair"),
    (LOG_2, lambda p: p.write_bytes(b"x" * 100), "penstock store repair"),
    (f"commitlog/{segment_name(0)}", lambda p: os.truncate(p, 5), "penstock store repair"),
    (f"commitlog/{segment_name(0)}", lambda p: os.truncate(p, 0), "penstock store repair"),
    ("commitlog/pipe", os.mkfifo, "penstock store repair"),
    (LOG_2, lambda p: p.symlink_to("/etc/passwd"), "penstock store repair"),
    (QUEUE + "notes.txt", lambda p: p.write_text("x"), "penstock store repair"),
    (QUEUE + segment_name(0), lambda p: os.truncate(p, 20), "penstock store repair"),
    (QUEUE + segment_name(1000), os.mkfifo, "penstock store repair"),
    ("consumequeue", _file_in_place, ""),
    ("config", _file_in_place, ""),
    ("config/topics.json", _directory_in_place, ""),
    ("config/topics.json", lambda p: p.write_text("{"), ".broken"),
    ("config/subscriptionGroup.json", lambda p: p.write_text("{"), ".broken"),
    ("config/consumerOffset.json", lambda p: p.write_text("{"), ".broken"),
    ("config/delayOffset.json", lambda p: p.write_text("{"), ".broken"),
    ("config/delayOffset.json", lambda p: p.write_text('{"offsetTable": {"1": -1}}'), ".broken"),
    ("checkpoint", _directory_in_place, ""),
    ("abort", _directory_in_place, ""),
    ("lock", _directory_in_place, ""),
    ("penstock", _file_in_place, ""),
    ("penstock/half-made", _file_in_place, ""),
    ("penstock/quarantine.json", lambda p: p.write_text("[{]"), ".broken"),
    ("penstock/quarantine.json", _directory_in_place, ""),
    ("index", _file_in_place, ""),
    ("index/20260101000000000", lambda p: p.mkdir(parents=True), ""),
]


def _short(each: object) -> str | None:
    """A word of a test's name. pytest names functions: where one lies differs by process."""
    return None if callable(each) else str(each)[:40]


@pytest.mark.parametrize(("name", "spoil", "hint"), REFUSED, ids=_short)
def test_what_a_start_refuses_is_named_and_nothing_is_changed(
    torn: Any, name: str, spoil: Callable[[Path], object], hint: str
) -> None:
    spoil(torn.paths.root / name)
    before = _tree(torn.paths.root)
    for _ in range(2):
        with pytest.raises(PenstockError) as refused:
            _open(torn)
        assert str(torn.paths.root / name) in str(refused.value)
        assert hint in refused.value.hint and refused.value.hint
        assert _tree(torn.paths.root) == before


@pytest.mark.parametrize("name", ["20260101000000000", "7"])
def test_what_has_the_name_of_an_index_file_and_is_none_is_called_so(torn: Any, name: str) -> None:
    """And not one of another length: nobody has made it with other sizes."""
    (torn.paths.index / name).mkdir(parents=True)
    with pytest.raises(PenstockError, match="this is no ordinary file") as refused:
        _open(torn)
    assert refused.value.hint.startswith("make the index anew: penstock store rebuild")
    assert f"{torn.paths.root} --index" in refused.value.hint


ACCEPTED: list[tuple[str, Callable[[Path], object], bool]] = [
    ("commitlog/backup", lambda p: (p.mkdir(), (p / "x").write_text("x")), True),
    (LOG_2, lambda p: p.touch(), False),
    (QUEUE + segment_name(1000), lambda p: p.touch(), False),
    ("consumequeue/notes.txt", lambda p: p.write_text("x"), True),
    ("consumequeue/orders/notes", lambda p: (p.mkdir(), (p / "x").write_text("x")), True),
    ("consumequeue/orders/007", lambda p: (p.mkdir(), (p / "x").write_text("x")), True),
    ("consumequeue/no topic!/0", lambda p: (p.mkdir(parents=True), (p / "x").touch()), True),
    # it is given its length, so that a full disk cannot refuse that later
    ("checkpoint", lambda p: p.write_bytes(b"short"), False),
    ("checkpoint", lambda p: p.write_bytes(b"\xff" * 4096), True),
    ("penstock/run.json", lambda p: p.write_text("{"), False),
    ("index/notes.txt", lambda p: (p.parent.mkdir(), p.write_text("x")), True),
    ("notes.txt", lambda p: p.write_text("x"), True),
    ("abort.bak", lambda p: p.touch(), True),
]


@pytest.mark.parametrize(("name", "spoil", "stays"), ACCEPTED, ids=_short)
def test_what_rocketmq_looks_away_from_stays_where_it_is(
    torn: Any, name: str, spoil: Callable[[Path], object], stays: bool
) -> None:
    spoil(torn.paths.root / name)
    before = _tree(torn.paths.root)
    _open(torn)
    after = _tree(torn.paths.root)
    foreign = {path: raw for path, raw in before.items() if path.startswith(name)}
    assert not stays or foreign and foreign.items() <= after.items()
    # entries of an unclean store are written again, here all of them
    gone = {path for path in before.keys() - after.keys() if not CUT.fullmatch(path)}
    assert gone <= (set() if stays else {name})
