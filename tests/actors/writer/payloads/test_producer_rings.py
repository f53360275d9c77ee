"""The rings of a writer: each belongs to one producer, and is gone with it; there are few at a
time, and only what is in them is copied."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.actors.writer.payloads import producer_rings
from penstock.actors.writer.payloads.producer_rings import (
    FILES_PER_RING,
    GRACE_MS,
    ProducerRings,
    Ring,
)
from penstock.shared.config import Config
from penstock.shared.errors import InvalidMessage, RingUnavailable, StoreUnavailable
from penstock.shared.memory import run_directory
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.ring_file import RING_BYTES, is_held, ring_files, take_ring
from penstock.shared.memory.run_directory import Run
from penstock.shared.wire.messages import OpenRing, Refused, RingOpened, RingSpan

MAX_FRAME_BYTES = 1 << 20
RunMaker = Callable[[Config], Run]


class Broker:
    """The memory of a run, and writers in it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.positions = Positions(run.positions, "writer")

    def writer(self, most: int = 3) -> ProducerRings:
        return ProducerRings(self.run, self.positions, most, MAX_FRAME_BYTES)

    def files(self) -> list[Path]:
        return ring_files(self.run.path)

    def take(self, ring: Ring) -> mmap.mmap:
        return take_ring(self.run.run_id, ring.number, RING_BYTES, ring.token)


@pytest.fixture
def broker(
    tmp_path: Path,
    make_config: Callable[..., Config],
    make_run: RunMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Broker]:
    run = make_run(make_config())
    monkeypatch.setattr(run_directory, "_MEMORY", run.path.parent)
    made = Broker(run)
    before = set(os.listdir("/proc/self/fd"))
    yield made
    assert set(os.listdir("/proc/self/fd")) <= before, "a ring is still open"


@pytest.fixture
def rings(broker: Broker) -> Iterator[ProducerRings]:
    rings = broker.writer()
    yield rings
    rings.close()


def test_a_ring_has_a_file_and_is_counted_until_it_is_dropped(
    broker: Broker, rings: ProducerRings
) -> None:
    one, two = rings.open(1, 0), rings.open(2, 0)
    assert one.number != two.number and one.token != two.token
    assert len(broker.files()) == broker.positions["rings"] == 2
    rings.drop(1)
    rings.drop(1)
    assert broker.files() == [two.path] and broker.positions["rings"] == 1
    rings.close()
    assert broker.files() == [] and broker.positions["rings"] == 0


def test_who_has_a_session_on_the_connection_is_given_a_ring_and_nobody_else(
    broker: Broker, rings: ProducerRings
) -> None:
    """Anybody could take another producer's ring away by asking in its name."""
    given = rings.answer(OpenRing(7, 1), True, 0)
    assert isinstance(given, RingOpened) and given.request == 7
    (file,) = broker.files()
    take_ring(given.run_id, given.ring, given.size, given.token).close()
    refused = rings.answer(OpenRing(8, 1), False, GRACE_MS)
    assert isinstance(refused, Refused)
    assert (refused.request, refused.status) == (8, RingUnavailable("", None).status)
    assert broker.files() == [file]


def test_a_copy_is_what_the_span_says_and_stays_when_the_ring_changes(
    broker: Broker, rings: ProducerRings
) -> None:
    taken = broker.take(ring := rings.open(7, 0))
    taken[500:505] = b"first"
    copy = rings.read(7, RingSpan(ring.number, 500, 5))
    taken[500:505] = b"other"
    assert copy == b"first"
    assert rings.read(7, RingSpan(ring.number, RING_BYTES, 0)) == b""
    taken[RING_BYTES - 3 :] = b"end"
    assert rings.read(7, RingSpan(ring.number, RING_BYTES - 3, 3)) == b"end"
    taken.close()


def test_a_span_as_large_as_a_frame_may_be_is_read(broker: Broker, rings: ProducerRings) -> None:
    ring = rings.open(7, 0)
    with broker.take(ring) as memory:
        frame = memory[:MAX_FRAME_BYTES] = os.urandom(MAX_FRAME_BYTES)
        assert rings.read(7, RingSpan(ring.number, 0, MAX_FRAME_BYTES)) == frame


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, MAX_FRAME_BYTES + 1),
        (RING_BYTES, 1),
        (RING_BYTES - 1, 2),
        (RING_BYTES + 1, 0),
        (1 << 61, 1 << 61),
        (0, (1 << 62) - 1),
    ],
)
def test_a_span_outside_the_ring_or_larger_than_a_frame_is_refused(
    rings: ProducerRings, offset: int, length: int
) -> None:
    ring = rings.open(7, 0)
    with pytest.raises(InvalidMessage, match="inside its ring"):
        rings.read(7, RingSpan(ring.number, offset, length))


def test_a_ring_is_read_for_its_own_producer_only(rings: ProducerRings) -> None:
    one, two = rings.open(1, 0), rings.open(2, 0)
    for producer, number in ((1, two.number), (2, one.number), (3, one.number), (1, 0)):
        with pytest.raises(RingUnavailable, match="is not this producer's"):
            rings.read(producer, RingSpan(number, 0, 1))


def test_who_takes_another_ring_has_the_first_no_more(broker: Broker, rings: ProducerRings) -> None:
    first, second = rings.open(1, 0), rings.open(1, GRACE_MS)
    assert broker.files() == [second.path] and broker.positions["rings"] == 1
    with pytest.raises(RingUnavailable):
        rings.read(1, RingSpan(first.number, 0, 1))


def test_who_has_a_new_ring_is_given_no_other(broker: Broker, rings: ProducerRings) -> None:
    ring = rings.open(1, 1000)
    for now_ms in (1000, 1000 + GRACE_MS - 1):
        with pytest.raises(StoreUnavailable, match="another ring within"):
            rings.open(1, now_ms)
    assert broker.files() == [ring.path] and rings.read(1, RingSpan(ring.number, 0, 1))


def test_a_file_that_is_made_shorter_is_an_error_and_no_signal(
    broker: Broker, rings: ProducerRings
) -> None:
    ring = rings.open(1, 0)
    os.truncate(ring.path, 4096)
    assert len(rings.read(1, RingSpan(ring.number, 0, 4096))) == 4096
    with pytest.raises(RingUnavailable, match="has become shorter"):
        rings.read(1, RingSpan(ring.number, 4000, 200))


def test_there_are_so_many_rings_at_most_and_the_next_is_refused(
    broker: Broker, rings: ProducerRings
) -> None:
    for producer in range(3):
        rings.open(producer, 0)
    with pytest.raises(StoreUnavailable, match="all 3 rings are taken"):
        rings.open(9, 0)
    assert len(broker.files()) == 3
    rings.open(2, GRACE_MS)  # who has one may have another instead
    rings.drop(0)
    rings.open(9, 0)


def test_few_open_files_mean_few_rings(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (5 * FILES_PER_RING, 5 * FILES_PER_RING)
    )
    assert broker.writer(64).most == 5
    assert broker.writer(0).most == 0


def test_a_producer_that_is_gone_or_never_comes_loses_its_ring(
    broker: Broker, rings: ProducerRings
) -> None:
    here = broker.take(rings.open(1, 0))
    gone = broker.take(rings.open(2, 0))
    rings.open(3, 0)
    gone.close()
    rings.look(GRACE_MS)
    assert broker.positions["rings"] == 3
    rings.look(GRACE_MS + 1)
    assert broker.positions["rings"] == len(broker.files()) == 1
    here.close()
    rings.look(GRACE_MS + 1)
    assert broker.files() == []


def test_a_new_writer_removes_what_its_predecessor_has_left(broker: Broker) -> None:
    before = broker.writer()
    ring = before.open(1, 0)
    taken = broker.take(ring)
    after = broker.writer()
    assert broker.files() == [] and broker.positions["rings"] == 0
    with pytest.raises(RingUnavailable):
        after.read(1, RingSpan(ring.number, 0, 1))
    taken[0:3] = b"abc"  # whoever has it mapped keeps its memory
    assert is_held(ring.handle)
    taken.close()
    before.close()  # whose files are gone


def test_where_there_is_no_memory_the_refusal_is_typed_and_the_count_as_before(
    broker: Broker, rings: ProducerRings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, token: bytes) -> int:
        raise OSError(28, "No space left on device")

    rings.open(1, 0)
    monkeypatch.setattr(producer_rings, "make_ring", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        rings.open(2, 0)
    assert broker.positions["rings"] == len(broker.files()) == 1
