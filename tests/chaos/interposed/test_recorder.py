"""What a recording of flushes holds, made by a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.chaos.interposed.images import FileState, read_disk
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.interposed.recorder import SOURCE, Flush, Recorder, read_flushes

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def record(place: Path, code: str) -> list[Flush]:
    """What is recorded of a process that runs this in a store's directory."""
    root = place / "store"
    root.mkdir()
    recorder = Recorder(place / "recording", root, build_library(SOURCE, place))
    environment = {**os.environ, **recorder.environment}
    subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, check=True)
    flushes = list(read_flushes(place / "recording"))
    assert recorder.flushes() == len(flushes)
    recorder.close()
    return flushes


def test_pages_and_names_are_recorded_in_the_order_of_their_flushes(tmp_path: Path) -> None:
    code = """if True:
        import os
        file = os.open("file", os.O_RDWR | os.O_CREAT)
        os.write(file, b"x" * 5000)
        os.fdatasync(file)
        os.fsync(os.open(".", os.O_RDONLY))
    """
    file, names = record(tmp_path, code)
    assert file.size == 5000 and sorted(file.pages) == [0, 1]
    assert names.path == str(tmp_path / "store") and names.names == {"file": file.file}


def test_a_directory_that_is_removed_while_it_is_synced_is_not_recorded(tmp_path: Path) -> None:
    code = """if True:
        import os
        os.mkdir("gone")
        gone = os.open("gone", os.O_RDONLY)
        os.rmdir("gone")
        os.fsync(gone)
        os.fsync(os.open(".", os.O_RDONLY))
    """
    (names,) = record(tmp_path, code)
    assert names.path == str(tmp_path / "store") and names.names == {}


def test_a_file_with_the_inode_of_one_that_was_removed_is_another_file(tmp_path: Path) -> None:
    # most file systems give an inode again sooner or later; one that does not shows nothing here
    code = """if True:
        import os

        def made(name):
            file = os.open(name, os.O_RDWR | os.O_CREAT)
            os.write(file, name.encode())
            number = os.fstat(file).st_ino
            os.close(file)
            return number

        def sync():
            for name in [*os.listdir(), "."]:
                file = os.open(name, os.O_RDONLY)
                os.fsync(file)
                os.close(file)

        first = made("first")
        sync()
        os.unlink("first")
        others = 0
        while made("second") != first and others < 1000:
            os.rename("second", f"other-{others}")
            others += 1
        for number in range(others):
            os.unlink(f"other-{number}")
        if not os.path.exists("second"):
            made("second")
        sync()
    """
    first, before, second, after = record(tmp_path, code)
    assert before.names == {"first": first.file} and after.names == {"second": second.file}
    assert first.file != second.file
    assert first.pages[0].startswith(b"first") and second.pages[0].startswith(b"second")
    live = read_disk(tmp_path / "store")
    assert live.names[str(tmp_path / "store")] == after.names
    assert live.files[second.file] == FileState(second.size, second.pages)
