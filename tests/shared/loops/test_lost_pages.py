"""Pages of a mapping that cannot be read: a file that became shorter has such pages anywhere."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from pathlib import Path

import pytest

compiled = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

PAGE = mmap.PAGESIZE
BEGIN = """
import mmap, os, socket, sys
from penstock.shared.loops.compiled import PageWatch, lost_pages, touch_pages
PAGE = mmap.PAGESIZE
def mapped(pages):
    with open(sys.argv[1], "wb+") as file:
        file.write(b"a" * pages * PAGE)
        file.flush()
        return mmap.mmap(file.fileno(), pages * PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
def lose(page):
    os.truncate(sys.argv[1], page * PAGE)
"""


def _run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + program, str(tmp_path / "file")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _passes(tmp_path: Path, program: str) -> None:
    done = _run(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_a_watched_page_that_is_lost_reads_as_ones_and_its_neighbours_as_before(
    tmp_path: Path,
) -> None:
    _passes(
        tmp_path,
        """
found = mapped(3)
watch = PageWatch(found)
lose(1)
assert found[PAGE - 1 : PAGE + 1] == b"a\\xff" and found[PAGE : 2 * PAGE] == b"\\xff" * PAGE
assert (watch.lost, watch.first, lost_pages()) == (1, PAGE, 1)
assert found[3 * PAGE - 1] == 0xFF
assert (watch.lost, watch.first, lost_pages()) == (2, PAGE, 2)
""",
    )


def test_a_page_that_is_lost_stays_as_it_is_when_the_process_releases_its_pages(
    tmp_path: Path,
) -> None:
    _passes(
        tmp_path,
        """
found = mapped(3)
watch = PageWatch(found)
lose(1)
assert found[PAGE:] == b"\\xff" * 2 * PAGE
found.madvise(mmap.MADV_DONTNEED)
assert found[PAGE:] == b"\\xff" * 2 * PAGE and found[:PAGE] == b"a" * PAGE
assert watch.lost == 2
""",
    )


def test_a_page_that_is_written_takes_what_is_stored_there_and_no_other_page_does(
    tmp_path: Path,
) -> None:
    _passes(
        tmp_path,
        """
mapped(3).close()
with open(sys.argv[1], "rb+") as file:
    written = mmap.mmap(file.fileno(), 3 * PAGE)
    read = mmap.mmap(file.fileno(), 3 * PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
watches = PageWatch(written), PageWatch(read)
lose(1)
written[PAGE] = written[2 * PAGE] = 7
assert written[PAGE : PAGE + 2] == b"\\x07\\xff" and read[PAGE : PAGE + 2] == b"\\xff\\xff"
""",
    )


def test_what_is_not_watched_ends_the_process_as_ever(tmp_path: Path) -> None:
    """Also where something else is watched, and what was watched before."""
    for end in ("watch.end()", "del watch", "watch = PageWatch(other)"):
        done = _run(
            tmp_path,
            f"""
other = mmap.mmap(-1, PAGE)
found = mapped(2)
watch = PageWatch(found)
{end}
lose(1)
found[PAGE]
""",
        )
        assert done.returncode == -signal.SIGBUS, (end, done.stderr)


def test_a_watch_does_not_keep_a_mapping_from_being_closed(tmp_path: Path) -> None:
    _passes(tmp_path, "found = mapped(1); watch = PageWatch(found); found.close()")


def test_a_system_call_gets_what_was_touched_before_and_fails_without(tmp_path: Path) -> None:
    _passes(
        tmp_path,
        """
found = mapped(4)
view, watch = memoryview(found), PageWatch(found)
lose(1)
here, there = socket.socketpair()
try:
    here.send(view[2 * PAGE + 1 : 3 * PAGE])
except OSError as error:
    assert "address" in str(error)
else:
    raise AssertionError
touch_pages(view[PAGE - 1 : 2 * PAGE + 1])
assert watch.lost == 2
assert here.send(view[PAGE - 1 : 2 * PAGE + 1]) == PAGE + 2
assert there.recv(4 * PAGE) == b"a" + b"\\xff" * (PAGE + 1)
touch_pages(b"")
""",
    )


def test_every_mapping_of_a_process_has_a_watch_and_one_too_many_has_none(tmp_path: Path) -> None:
    _passes(
        tmp_path,
        """
found = mapped(1)
watches = [PageWatch(found) for _ in range(1024)]
more = PageWatch(found)
more.end()
lose(0)
assert found[0] == 0xFF and watches[0].lost == 1 and more.lost == 0
watches.clear()
again = mapped(2)
watch = PageWatch(again)
lose(1)
assert again[PAGE] == 0xFF and watch.lost == 1
""",
    )


def test_the_handler_of_before_gets_what_is_not_watched(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
import faulthandler
faulthandler.enable()
other, found = mmap.mmap(-1, PAGE), mapped(2)
watch = PageWatch(other)
lose(1)
found[PAGE]
""",
    )
    assert done.returncode == -signal.SIGBUS and "Fatal Python error: Bus error" in done.stderr


def test_without_the_compiled_loops_nothing_is_watched_and_nothing_said_to_be_lost() -> None:
    from penstock.shared.loops.lost_pages import PageWatch, lost_pages, touch_pages

    with mmap.mmap(-1, PAGE) as found:
        watch = PageWatch(found)
        touch_pages(found)
        watch.end()
    assert (watch.lost, watch.first, lost_pages()) == (0, 0, 0)
    assert compiled.PageWatch is not PageWatch
