"""The positions page: one owner for each word, seen by other processes, outliving them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.memory.positions import (
    LINE_BYTES,
    PAGE_SIZE,
    POSITIONS,
    STATES,
    Positions,
    create_positions,
)
from penstock.shared.memory.roster import ACTORS

OWNERS = ("supervisor", *ACTORS, "")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    create_positions(tmp_path / "positions")
    return tmp_path / "positions"


@pytest.fixture
def mapped(page: Path) -> Iterator[dict[str, Positions]]:
    """The page as each process has it."""
    all_of_them = {owner: Positions(page, owner) for owner in OWNERS}
    yield all_of_them
    for each in all_of_them.values():
        each.close()


def test_every_position_has_an_owner_that_exists_and_says_what_it_means() -> None:
    for position in POSITIONS:
        assert position.owner in OWNERS[:-1]
        assert position.unit and position.meaning


def test_only_the_owner_publishes(mapped: dict[str, Positions]) -> None:
    for number, position in enumerate(POSITIONS, 1):
        for owner in OWNERS:
            if owner != position.owner:
                with pytest.raises(PermissionError, match=position.name):
                    mapped[owner].publish(position.name, 99)
        assert mapped[""][position.name] == 0
        mapped[position.owner].publish(position.name, number)
    expected = {position.name: number for number, position in enumerate(POSITIONS, 1)}
    for each in mapped.values():
        assert each.all() == expected


def test_words_of_different_owners_share_no_cache_line(page: Path) -> None:
    """It is found by writing: which line of the file changes with which word."""
    lines: dict[str, int] = {}
    for number, position in enumerate(POSITIONS, 1):
        before = page.read_bytes()
        each = Positions(page, position.owner)
        each.publish(position.name, number << 40 | 0xFF)
        each.close()
        after = page.read_bytes()
        changed = {i // LINE_BYTES for i in range(PAGE_SIZE) if before[i] != after[i]}
        assert len(changed) == 1
        lines[position.name] = changed.pop()
    assert len(set(lines.values())) == len(POSITIONS) and 0 not in lines.values()


def test_of_two_owners_that_store_and_then_load_one_sees_what_the_other_has_stored(
    page: Path,
) -> None:
    """Two processes at once, many times over; each waits for the other before the next time. That
    both had missed it was not seen here without the lock either, as much Python lies between a
    store and a load. What is held is that a word is there when the other one is loaded."""
    fork = multiprocessing.get_context("fork")
    (mine, yours), (back, forth) = fork.Pipe(), fork.Pipe()

    def one(owner: str, word: str, other: str, end: Connection) -> None:
        positions = Positions(page, owner)
        for number in range(1, 3001):
            positions.publish_before_loads(word, number)
            end.send(positions[other] >= number)
            end.recv()
        positions.close()

    # each hears from this process, and only when both have said what they have seen
    children = [
        fork.Process(target=one, args=(owner, word, other, end), daemon=True)
        for owner, word, other, end in (
            ("writer", "recalled", "delay_sent", yours),
            ("scheduler", "delay_sent", "recalled", forth),
        )
    ]
    for child in children:
        child.start()
    for _ in range(3000):
        assert mine.recv() | back.recv()
        mine.send(None)
        back.send(None)
    for child in children:
        child.join()
        assert child.exitcode == 0


def test_a_word_holds_64_bits(mapped: dict[str, Positions]) -> None:
    mapped["writer"].publish("wrote", 2**64 - 1)
    assert mapped["reader"]["wrote"] == 2**64 - 1
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError):
            mapped["writer"].publish("wrote", wrong)
    assert mapped["reader"]["wrote"] == 2**64 - 1


def test_a_wrong_name_is_an_error(mapped: dict[str, Positions]) -> None:
    with pytest.raises(KeyError):
        mapped["writer"].publish("written", 1)
    with pytest.raises(KeyError):
        mapped["writer"]["written"]


def test_only_the_supervisor_initialises_and_supervises(mapped: dict[str, Positions]) -> None:
    for owner in OWNERS[1:]:
        with pytest.raises(PermissionError):
            mapped[owner].initialise("wrote", 1)
        with pytest.raises(PermissionError):
            mapped[owner].supervise("writer", pid=1)
    mapped["supervisor"].initialise("wrote", 7)
    assert mapped["reader"]["wrote"] == 7


def test_without_an_owner_nothing_can_be_stored(page: Path, mapped: dict[str, Positions]) -> None:
    page.chmod(0o400)
    onlooker = Positions(page)
    with pytest.raises(TypeError):
        onlooker._words[8] = 1  # the mapping itself is read-only
    onlooker.close()


def test_the_life_of_every_actor_is_kept_apart(mapped: dict[str, Positions]) -> None:
    supervisor = mapped["supervisor"]
    for number, actor in enumerate(ACTORS, 1):
        supervisor.supervise(actor, pid=number * 10, generation=number, restarts=1, state=2)
        for _ in range(number):
            words = {"now_ms": number * 1000, "generation": number}
            assert mapped[actor].beat(**words, unreadable_pages=100 + number)
        mapped[actor].begin_work(number)
    for number, actor in enumerate(ACTORS, 1):
        life = mapped[""].life(actor)
        said = (actor, number * 10, number, "running", 1, number * 1000)
        assert life == (*said, number, number, number, 100 + number), "both generations"
    for number, state in enumerate(STATES):
        supervisor.supervise("writer", state=number)
        assert mapped[""].life("writer").state == state


def test_an_actor_of_an_old_generation_is_told_so_and_leaves_no_beat(
    mapped: dict[str, Positions],
) -> None:
    supervisor, writer = mapped["supervisor"], mapped["writer"]
    supervisor.supervise("writer", generation=3)
    assert writer.beat(1000, generation=3)
    supervisor.supervise("writer", generation=4)
    assert not writer.beat(2000, generation=3)
    life = mapped[""].life("writer")
    assert (life.heartbeat_ms, life.cycles, life.beating_generation) == (1000, 1, 3)
    assert writer.beat(3000, generation=4)


OTHER_PROCESS = """
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from penstock.shared.memory.positions import Positions
page = Positions(Path(sys.argv[1]), "flusher")
while True:
    line = sys.stdin.readline()
    if not line:
        break
    page.publish("flushed", page["wrote"] + 1)
    print(page["wrote"], flush=True)
"""


def test_two_processes_see_each_others_words(page: Path) -> None:
    writer = Positions(page, "writer")
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(page)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        for value in (5, 2**63, 1):
            writer.publish("wrote", value)
            other.stdin.write("go\n")
            other.stdin.flush()
            assert other.stdout.readline() == f"{value}\n"
            assert writer["flushed"] == value + 1
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
    assert writer["flushed"] == 2, "the page outlives who wrote it"
    writer.close()
    again = Positions(page)
    assert (again["wrote"], again["flushed"]) == (1, 2)
    again.close()


def test_a_page_is_made_once(page: Path) -> None:
    assert page.stat().st_size == PAGE_SIZE and page.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_positions(page)


@pytest.mark.parametrize("at", [0, 8])
def test_a_page_without_its_mark_or_of_another_version_is_refused(page: Path, at: int) -> None:
    handle = os.open(page, os.O_RDWR)
    os.pwrite(handle, b"\x7f", at)
    os.close(handle)
    with pytest.raises(StoreDamaged, match="another version"):
        Positions(page)


@pytest.mark.parametrize("size", [0, 15, 4096])
def test_a_page_that_an_earlier_version_made_shorter_is_refused(page: Path, size: int) -> None:
    os.truncate(page, size)
    with pytest.raises(StoreDamaged, match="another version"):
        Positions(page)


def test_a_position_says_when_it_moved_and_when_its_owner_had_woken_up(
    mapped: dict[str, Positions],
) -> None:
    assert mapped[""].moment("wrote") == (0, 0, 0)
    mapped["writer"].woke_ns = 5
    before = time.monotonic_ns()
    mapped["writer"].publish("wrote", 99)
    value, published_ns, woke_ns = mapped[""].moment("wrote")
    assert (value, woke_ns) == (99, 5)
    assert before <= published_ns <= time.monotonic_ns()
    assert mapped[""].published_ns("wrote") == published_ns
