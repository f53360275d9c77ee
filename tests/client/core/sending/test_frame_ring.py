"""A producer's ring: asked for when it is worth it, filled, given back, and given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Condition

import pytest

from penstock.actors.writer.payloads.producer_rings import ProducerRings
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import (
    ASK_AGAIN_MS,
    ENOUGH_BYTES,
    LEAST_FRAME_BYTES,
    FrameRing,
)
from penstock.client.core.sending.frames import Frame, Sender, SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.shared.config import Config
from penstock.shared.errors import PropertiesTooLarge
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.record_layout import Shape
from penstock.shared.memory import run_directory
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.ring_file import RING_BYTES
from penstock.shared.memory.run_directory import Run
from penstock.shared.wire.messages import (
    OpenRing,
    RingOpened,
    RingSpan,
    Welcome,
    decode_produce_request,
)

PRODUCER = 4711
FRAME = 256 << 10


class Scene:
    """A producer's ring and the writer's side of it."""

    def __init__(self, run: Run, rings: ProducerRings) -> None:
        self.run = run
        self.rings = rings
        self.ring = FrameRing(True)
        self.numbers = count(1)
        self.open_session(1)

    def open_session(self, generation: int, rings: bool = True) -> None:
        welcome = Welcome(PRODUCER, 1, 1, 0, 1 << 20, 1 << 22, generation, rings=rings)
        self.ring.session_open(welcome)

    def asked(self, now_ms: int = 1000) -> int:
        """The number of the request for a ring; 0 when there is none."""
        for (header,) in self.ring.outgoing(PRODUCER, now_ms, lambda: next(self.numbers)):
            request = decode_produce_request(header)
            assert isinstance(request, OpenRing) and request.producer == PRODUCER
            return request.request
        return 0

    def answer(self, request: int) -> None:
        self.rings.drop(PRODUCER)
        made = self.rings.open(PRODUCER, 0)
        self.ring.opened(RingOpened(request, self.run.run_id, made.number, RING_BYTES, made.token))

    def hold(self) -> None:
        self.ring.room(0, ENOUGH_BYTES)
        self.answer(self.asked())
        assert self.ring.is_held

    def put(self, frame: int, body: bytes, size: int = FRAME) -> RingSpan | None:
        room = self.ring.room(frame, size)
        if room is None:
            return None
        with room:
            room[: len(body)] = body
        return self.ring.filled(frame, len(body))

    def read(self, span: RingSpan | None) -> bytes:
        assert span is not None
        return bytes(self.rings.read(PRODUCER, span))


@pytest.fixture
def scene(
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    run = make_run(make_config())
    monkeypatch.setattr(run_directory, "_MEMORY", run.path.parent)
    rings = ProducerRings(run, Positions(run.positions, "writer"), 4, 4 << 20)
    scene = Scene(run, rings)
    yield scene
    scene.ring.close()
    rings.close()


def test_who_sends_little_asks_for_no_ring(scene: Scene) -> None:
    scene.ring.room(1, ENOUGH_BYTES - 1)
    for frame in range(100):
        scene.ring.room(frame, LEAST_FRAME_BYTES - 1)
    assert not scene.asked()
    scene.ring.room(2, LEAST_FRAME_BYTES)
    assert scene.asked() and not scene.asked(), "once"


def test_what_is_put_into_a_ring_is_there_until_it_is_answered(scene: Scene) -> None:
    scene.hold()
    spans = {}
    for frame in count(1):
        span = scene.put(frame, bytes([frame % 256]) * 20_000, 40_000)
        if span is None:
            break
        spans[frame] = span
    # a frame takes the room that it needs, which is less than it may need
    assert len(spans) > RING_BYTES // 21_000
    assert all(scene.read(span) == bytes([n % 256]) * 20_000 for n, span in spans.items())
    scene.ring.answered(2)
    assert scene.put(1001, b"x", 40_000) is None, "the first is still there"
    scene.ring.answered(1)
    scene.ring.answered(1)
    scene.ring.answered(9999)
    assert scene.read(scene.put(1002, b"new", 40_000)) == b"new"
    assert scene.read(spans[3]) == bytes([3]) * 20_000


def test_who_has_a_ring_asks_for_no_other(scene: Scene) -> None:
    scene.hold()
    assert not scene.asked(1 << 40)


def test_small_and_very_large_frames_go_through_the_socket(scene: Scene) -> None:
    scene.hold()
    assert scene.ring.room(1, LEAST_FRAME_BYTES - 1) is None
    assert scene.ring.room(1, RING_BYTES + 1) is None
    assert scene.put(1, b"x", LEAST_FRAME_BYTES) is not None


def test_a_frame_that_cannot_be_packed_leaves_its_room_to_others(scene: Scene) -> None:
    scene.hold()
    origin = KeyOrigin("0A" * 10, 0)
    encoder = Encoder(b"\x7f\0\0\1", origin)
    packer = Packer(encoder, scene.ring)
    # as long as may be, where records have no room for a checksum
    value = "x" * (32767 - len(f"UNIQ_KEY\x01{'0' * 32}\x02a\x01\x02"))
    draft = encoder.draft(BatchMessage(b"", properties={"a": value}), None)
    size = encoder.room("orders", draft)
    encoder.terms.shape = Shape(8, True)
    for number in range(1, 1 + RING_BYTES // size):
        frame = Frame("")
        frame.put("orders", 0, draft, size, SendFuture(Sender(Condition(), origin), 0), True)
        frame.close(number)
        with pytest.raises(PropertiesTooLarge):
            packer.append(PRODUCER, 1, frame, 0)
    assert scene.put(1000, b"x", RING_BYTES // 2) is not None


def test_another_session_has_the_whole_ring_again(scene: Scene) -> None:
    scene.hold()
    while scene.put(number := next(scene.numbers), b"x" * FRAME):
        continue
    scene.open_session(1)
    span = scene.put(5000, b"new")
    assert span is not None and span.offset == 0 and scene.ring.is_held
    for earlier in range(number + 1):
        scene.ring.answered(earlier)
    other = scene.put(5001, b"other")
    assert other != span and scene.read(span) == b"new", "the one before it has no answer yet"


def test_another_writer_has_another_ring(scene: Scene) -> None:
    scene.hold()
    scene.open_session(2)
    assert not scene.ring.is_held and scene.put(1, b"x") is None
    assert scene.asked(1001), "asked for at once"


def test_a_refusal_is_followed_by_another_question_later(scene: Scene) -> None:
    scene.ring.room(0, ENOUGH_BYTES)
    request = scene.asked(1000)
    assert scene.ring.refused(request) and not scene.ring.refused(request + 1)
    assert not scene.asked(1000 + ASK_AGAIN_MS - 1)
    assert scene.asked(1000 + ASK_AGAIN_MS)


def test_an_answer_that_comes_too_late_is_not_taken(scene: Scene) -> None:
    scene.ring.room(0, ENOUGH_BYTES)
    first, second = scene.asked(1000), scene.asked(1000 + ASK_AGAIN_MS)
    scene.answer(first)
    assert not scene.ring.is_held
    scene.answer(second)
    assert scene.ring.is_held
    span = scene.put(1, b"x")
    scene.answer(second)
    assert scene.put(2, b"y") is not None and span is not None, "nothing is taken twice"


def test_a_broker_whose_ring_is_not_here_is_not_asked_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at the other end of a tunnel, or in a container of its own."""
    monkeypatch.setattr(run_directory, "_MEMORY", tmp_path / "elsewhere")
    scene.ring.room(0, ENOUGH_BYTES)
    scene.answer(scene.asked(1000))
    assert not scene.ring.is_held and not scene.asked(1 << 40)
    scene.open_session(2)
    assert not scene.asked(1 << 40)


@pytest.mark.parametrize(("wanted", "offered"), [(False, True), (True, False)])
def test_without_the_wish_or_the_offer_nobody_asks(
    scene: Scene, wanted: bool, offered: bool
) -> None:
    scene.ring = FrameRing(wanted)
    scene.open_session(1, offered)
    assert scene.ring.room(0, 1 << 30) is None and not scene.asked()
