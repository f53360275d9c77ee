"""The log's files, read by a consumer: what an answer leads to, or nothing and then the socket."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.log_files import MAX_ANSWER_BYTES, TRY_AGAIN_MS, LogFiles
from penstock.shared.errors import ProtocolError
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.forms import RANGE
from penstock.shared.wire.messages import Pulled, QueueSlice
from penstock.shared.wire.pulled_parts import Place

SEGMENT_BYTES = 1 << 20
BASE = 3 * SEGMENT_BYTES
PIECES = st.lists(st.lists(st.binary(min_size=1, max_size=200), max_size=5), max_size=3)


def answer(log: Any, size: int, *places: Place) -> Pulled:
    return Pulled(1, (QueueSlice(0, 0, 5, 0, 9, size),), (0,), log.run_id, places)


@pytest.fixture
def log(make_log: Callable[[], Any]) -> Any:
    return make_log()


@pytest.fixture
def stored(log: Any) -> tuple[Pulled, bytes]:
    """An answer that leads to b"one" and b"three", and its payload."""
    return answer(log, 8, Place(BASE, 2)), log.put(BASE, [b"one", b"three"])


def segment(log: Any) -> Path:
    return Path(log.directory / segment_name(BASE))


def test_what_is_read_is_what_the_socket_would_carry(log: Any) -> None:
    @given(groups=PIECES)
    def check(groups: list[list[bytes]]) -> None:
        places, ranges = [], b""
        for number, pieces in enumerate(groups):
            ranges += log.put(number * SEGMENT_BYTES, pieces)
            places.append(Place(number * SEGMENT_BYTES, len(pieces)))
        whole = b"".join(piece for pieces in groups for piece in pieces)
        assert LogFiles(True).read(answer(log, len(whole), *places), ranges, 0) == whole

    check()


def test_a_file_is_open_only_while_it_is_read(stored: tuple[Pulled, bytes]) -> None:
    before = os.listdir("/proc/self/fd")
    assert LogFiles(True).read(*stored, 0) == b"onethree"
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_what_was_read_stays_when_the_file_changes(stored: tuple[Pulled, bytes], log: Any) -> None:
    found = LogFiles(True).read(*stored, 0)
    segment(log).write_bytes(b"something else")
    assert found == b"onethree"


def test_nobody_reads_who_does_not_want_to(stored: tuple[Pulled, bytes]) -> None:
    files = LogFiles(False)
    assert not files.usable(1 << 40)
    with pytest.raises(ProtocolError):
        files.read(*stored, 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def forbid(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [Path.unlink, cut, link, forbid])
def test_a_file_that_cannot_be_read_is_left_alone_for_a_while(
    harm: Callable[[Path], None], stored: tuple[Pulled, bytes], log: Any
) -> None:
    files = LogFiles(True)
    assert files.usable(0)
    harm(segment(log))
    assert files.read(*stored, 1000) is None
    assert not files.usable(1000 + TRY_AGAIN_MS - 1)
    assert files.usable(1000 + TRY_AGAIN_MS)


def name_another_run(store: Path, run: Path) -> None:
    path = StorePaths(store).run
    path.write_bytes(path.read_bytes().replace(run.name[9:].encode(), b"0" * 16))


def lose_the_name(store: Path, run: Path) -> None:
    (run / "store").unlink()


def lose_the_directory(store: Path, run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def link_the_directory(store: Path, run: Path) -> None:
    lose_the_directory(store, run)
    run.symlink_to(run.with_name("elsewhere"))


def give_the_directory_away(store: Path, run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of somebody else")
    os.chown(run, 12345, 12345)


def lose_the_store(store: Path, run: Path) -> None:
    store.rename(store.with_name("elsewhere"))


@pytest.mark.parametrize(
    "harm",
    [
        name_another_run,
        lose_the_name,
        lose_the_directory,
        link_the_directory,
        give_the_directory_away,
        lose_the_store,
    ],
)
def test_a_store_that_is_not_on_this_machine_is_never_looked_for_again(
    harm: Callable[[Path, Path], None], stored: tuple[Pulled, bytes], log: Any
) -> None:
    store = log.directory.parent
    harm(store, store.parent / f"penstock-{log.run_id}")
    files = LogFiles(True)
    assert files.read(*stored, 0) is None
    assert not files.usable(1 << 40)
    assert files.read(*stored, 0) is None, "who was interrupted reads the same answer again"


@pytest.mark.parametrize("run_id", ["", "../../../../etc", "0" * 15, "0" * 17, "g" * 16, "0" * 16])
def test_a_name_that_is_no_runs_meets_no_path(run_id: str, stored: tuple[Pulled, bytes]) -> None:
    files = LogFiles(True)
    named = Pulled(1, stored[0].slices, (0,), run_id, stored[0].places)
    assert files.read(named, stored[1], 0) is None
    assert not files.usable(1 << 40)


def test_an_id_that_leads_elsewhere_is_not_followed(stored: tuple[Pulled, bytes], log: Any) -> None:
    """All is as it should be at the other end of this path, but that no run has such an id."""
    run_id = "a/../elsewhere"
    store = log.directory.parent
    place = store.parent
    (place / "penstock-a").mkdir()
    (place / f"penstock-{log.run_id}").rename(place / "elsewhere")
    named = StorePaths(store).run
    named.write_bytes(named.read_bytes().replace(log.run_id.encode(), run_id.encode()))
    files = LogFiles(True)
    found = Pulled(1, stored[0].slices, (0,), run_id, stored[0].places)
    assert files.read(found, stored[1], 0) is None
    assert not files.usable(1 << 40)


def test_a_broker_that_starts_again_is_found_again(make_log: Callable[[], Any]) -> None:
    files = LogFiles(True)
    for number in range(3):
        log = make_log()
        ranges = log.put(BASE, [b"%d" % number])
        assert files.read(answer(log, 1, Place(BASE, 1)), ranges, 0) == b"%d" % number


def ranges(*pairs: tuple[int, int]) -> bytes:
    return b"".join(RANGE.pack(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("size", "places", "payload"),
    [
        (3, [Place(BASE, 1)], b""),
        (3, [Place(BASE, 1)], ranges((BASE, BASE + 3))[:-1]),
        (3, [Place(BASE, 2)], ranges((BASE, BASE + 3))),
        (3, [Place(BASE, 1)], ranges((BASE, BASE + 1), (BASE, BASE + 2))),
        (4, [Place(BASE, 1)], ranges((BASE, BASE + 3))),
        (2, [Place(BASE, 1)], ranges((BASE, BASE + 3))),
        (3, [Place(BASE, 1)], ranges((BASE - 1, BASE + 2))),
        (3, [Place(BASE, 1)], ranges((-3, 0))),
        (0, [Place(BASE, 1)], ranges((BASE + 3, BASE))),
        (3, [Place(BASE, 2)], ranges((BASE, BASE + 6), (BASE + 9, BASE + 6))),
        (-3, [Place(BASE, 1)], ranges((BASE + 3, BASE))),
        (MAX_ANSWER_BYTES + 1, [Place(0, 1)], ranges((0, MAX_ANSWER_BYTES + 1))),
        (1 << 70, [Place(0, 1)], ranges((0, (1 << 63) - 1))),
    ],
)
def test_an_answer_that_contradicts_itself_is_a_typed_error(
    size: int, places: list[Place], payload: bytes, log: Any
) -> None:
    log.put(BASE, [b"something to read"])
    with pytest.raises(ProtocolError):
        LogFiles(True).read(answer(log, size, *places), payload, 0)


def test_all_of_a_segment_from_its_first_byte_on_may_be_told_and_a_part_without_a_byte(
    log: Any,
) -> None:
    log.put(BASE, [b"something to read"])
    raw = segment(log).read_bytes()[:9]
    told = ranges((BASE, BASE + 4), (BASE + 4, BASE + 4), (BASE + 4, BASE + 9))
    assert bytes(LogFiles(True).read(answer(log, 9, Place(BASE, 3)), told, 0)) == raw
