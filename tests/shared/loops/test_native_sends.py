"""The fast path of sends, compiled and in Python: the same frames, futures and counts.

Both are given the same random histories of sends, refusals and settled frames, from seeds.
"""

from __future__ import annotations

import gc
import random
import weakref
from array import array
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.formats.message_id import KeyOrigin, key_number
from penstock.shared.loops.forms import FRAME_BYTES, NO_ROOM, PLAIN_PROPERTIES_BYTES, Plain
from penstock.shared.loops.pure import intake as pure_intake
from penstock.shared.loops.pure import sends

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

pure = SimpleNamespace(**{**vars(sends), **vars(pure_intake)})
FORMS = pytest.mark.parametrize("loops", [native, pure], ids=["native", "pure"])
ORIGIN = KeyOrigin("0A" * 10, 1_698_796_800_000)
NOW_MS = 1_700_000_000_000
FIXED_BYTES, COMPRESSED_BYTES = 180, 3000
VIEW = memoryview(b"a view")


def taking(loops: Any) -> Any:
    """What takes plain messages, with a caller; `frames` are all that this has opened."""

    class Future(loops.Outcome):
        __slots__ = ()

    limit = SimpleNamespace(max_message_bytes=0)
    turns, queues = {"a": cycle(range(3)), "%b": cycle([7])}, {"a": 3, "%b": 8}
    numbers = loops.KeyNumbers(ORIGIN)
    plain = Plain(Future, "me", "durable", numbers, limit, FIXED_BYTES, COMPRESSED_BYTES)
    return Taking(loops, loops.Intake(plain, turns, queues), limit, turns, queues)


class Taking:
    """An intake and its caller, who opens frames, and notes what is left to it."""

    def __init__(self, loops: Any, intake: Any, limit: Any, turns: Any, queues: Any) -> None:
        self.intake, self.limit, self.turns, self.queues = intake, limit, turns, queues
        self._loops = loops
        self.frames: list[Any] = []
        self.others: list[Any] = []
        self.futures: list[Any] = []

    def send(self, *arguments: Any) -> Any:
        return self._take(self.intake.take, arguments)

    def send_batch(self, *arguments: Any) -> Any:
        return self._take(self.intake.take_batch, arguments)

    def _take(self, take: Any, arguments: Any) -> Any:
        if (future := take(*arguments)) is NO_ROOM:
            self.intake.frame = self._loops.FrameOfRuns(arguments[-2] or "durable")
            self.frames.append(self.intake.frame)
            future = take(*arguments)
            assert future is not None and future is not NO_ROOM
        if future is None:
            self.others.append(arguments)
        return future


class Text(str):
    """A topic that is not quite a str."""


def one_send(rng: random.Random) -> tuple[Any, ...]:
    """Mostly a plain message; at times something of it is not."""
    unusual: list[Any] = [None] * 7
    if rng.random() < 0.4:
        unusual[rng.randrange(7)] = True
    topic: Any = rng.choice(("a", "a", "%b", "grün"))
    body: Any = rng.randbytes(rng.choice((0, 1, 100, 999, 2999)))
    if unusual[0]:
        topic = rng.choice(("unknown", Text("a"), 5, None, ["a"]))
    if unusual[1]:
        body = rng.choice((bytearray(3), VIEW, "x", None, bytes(3000), bytes(2**18)))
    tags = rng.choice((None, None, "", "t", "ü", "a b", "x" * PLAIN_PROPERTIES_BYTES))
    tags = rng.choice(("a\x01b", "\ud800", 5)) if unusual[2] else tags
    return (
        topic,
        body,
        tags,
        rng.choice((None, None, "k", "k1 k2", "")),
        rng.choice(("", "s", "ü")) if unusual[3] else None,
        rng.choice((0, 2, 3, -1, 2**70, True, "1")) if unusual[4] else None,
        rng.choice(("written", "durable")) if not unusual[5] else rng.choice(("", Text(""), None)),
        NOW_MS + rng.randrange(3) if not unusual[6] else rng.choice((0, ORIGIN.month_start_ms - 1)),
    )


def one_batch(rng: random.Random) -> tuple[Any, ...]:
    topic, _, _, _, _, queue, ack, now_ms = one_send(rng)
    bodies: Any = [rng.randbytes(rng.choice((0, 9, 500))) for _ in range(rng.randrange(70))]
    if rng.random() < 0.2:
        bodies.append(rng.choice(("x", None, bytearray(1), bytes(2**17), bytes(2**18))))
    if rng.random() < 0.1:
        bodies = tuple(bodies)
    return topic, bodies, queue, ack, now_ms


def step(core: Any, rng: random.Random, action: float) -> Any:
    """Do the next thing; how it ended."""
    if action < 0.6:
        call, arguments = (core.send, one_send(rng)) if action < 0.4 else (None, one_batch(rng))
        try:
            future = (call or core.send_batch)(*arguments)
        except Exception as error:
            return type(error), str(error)
        if future is not None:
            core.futures.append(future)
        return future is not None
    if action < 0.7:
        core.limit.max_message_bytes = rng.choice((0, 100, 2000, 2**20))
    elif action < 0.75:
        core.intake.frame = None
    elif action < 0.8:
        core.queues["new"] = rng.randrange(1, 5)
        core.turns["new"] = cycle(range(core.queues["new"]))
    elif core.frames:
        frame = rng.choice(core.frames)
        kind = rng.randrange(4)
        frame.answer = "late" if kind == 1 else frame.answer
        frame.error = ValueError("lost") if kind == 2 else frame.error
        frame.stored, frame.answer = (True, "yes") if kind == 3 else (frame.stored, frame.answer)
    return None


def state(core: Any) -> Any:
    """All that can be seen, as comparable things."""
    frames = [
        (
            frame.ack,
            frame.size,
            {topic: sorted(queues) for topic, queues in frame.open_runs.items()},
            [
                (run.topic, run.queue_id, run.batch, run.fixed, run.drafts, run.keys)
                + (len(run.futures),)
                for run in frame.runs
            ],
        )
        for frame in core.frames
    ]
    futures = [
        (
            each.sender,
            each.key,
            each.keys,
            each.index,
            each.seen,
            each.done(),
            each.error,
            core.frames.index(each.run.frame),
            each.run.frame.runs.index(each.run),
            [other is each for other in each.run.futures].index(True),
        )
        for each in core.futures
    ]
    others = [str(arguments) for arguments in core.others]
    return frames, futures, others, core.intake.unsettled, core.intake.waiting_bytes


@pytest.mark.parametrize("seed", range(60))
def test_the_same_history_leaves_the_same_frames_and_futures(seed: int) -> None:
    cores, rngs = [taking(native), taking(pure)], [random.Random(seed), random.Random(seed)]
    actions = random.Random(-seed)
    for number in range(60):
        action = actions.random()
        ends = [step(core, rng, action) for core, rng in zip(cores, rngs, strict=True)]
        assert ends[0] == ends[1], number
    found = [state(core) for core in cores]
    assert found[0] == found[1]
    assert cores[0].futures and cores[0].others
    for ours, theirs in zip(cores[0].futures, cores[1].futures, strict=True):
        assert ours.ask() == theirs.ask()
        assert ours.seen and theirs.seen


@FORMS
def test_a_plain_message_is_a_body_and_the_number_of_its_key(loops: Any) -> None:
    core = taking(loops)
    for body in (b"one", b"two", b"three", b"four"):
        core.send("a", body, None, None, None, None, "", NOW_MS)
    core.send("a", b"five", "t", None, None, None, "", NOW_MS)
    (frame,) = core.frames
    keys = [key_number(ORIGIN, NOW_MS, count) for count in range(1, 6)]
    assert [(run.queue_id, run.drafts, list(run.keys)) for run in frame.runs] == [
        (0, [b"one", b"four"], [keys[0], keys[3]]),
        (1, [b"two", (b"five", b"TAGS\x01t\x02", 0, 0)], [keys[1], keys[4]]),
        (2, [b"three"], [keys[2]]),
    ]
    assert core.intake.unsettled == 5 and core.intake.waiting_bytes == frame.size
    assert frame.size == 5 * (FIXED_BYTES + 1) + 19 + 7


@FORMS
def test_a_batch_that_is_changed_after_the_send_is_what_it_was(loops: Any) -> None:
    core, bodies = taking(loops), [b"one", b"two"]
    core.send_batch("a", bodies, None, "", NOW_MS)
    bodies.append("no body at all")
    (run,) = core.frames[0].runs
    assert run.drafts == [b"one", b"two"] and run.batch and len(run.keys) == 2


@FORMS
def test_a_frame_ends_where_the_next_message_has_no_room(loops: Any) -> None:
    core = taking(loops)
    for size in (2000, 2500) * 100:
        core.send("a", bytes(size), None, None, None, None, "", NOW_MS)
    assert core.send_batch("a", [bytes(2**17)] * 2, None, "", NOW_MS) is None, "fits into none"
    sizes = [frame.size for frame in core.frames]
    assert len(sizes) == 2 and FRAME_BYTES - 2700 < sizes[0] <= FRAME_BYTES
    assert sum(sizes) == core.intake.waiting_bytes


@FORMS
def test_keys_count_to_65536_and_begin_anew(loops: Any) -> None:
    numbers = loops.KeyNumbers(ORIGIN)
    found = [*numbers.several(NOW_MS, 65_530), *[numbers.next(NOW_MS) for _ in range(10)]]
    assert found == [key_number(ORIGIN, NOW_MS, 1 + place) for place in range(65_540)]
    assert len(set(found)) == 65_536


@FORMS
def test_a_refusal_of_tags_leaves_no_trace(loops: Any) -> None:
    core = taking(loops)
    with pytest.raises(InvalidMessage, match="separator"):
        core.send("a", b"x", "a\x01b", None, None, None, "", NOW_MS)
    assert core.intake.unsettled == core.intake.waiting_bytes == 0 and not core.frames
    future = core.send("a", b"x", None, None, None, None, "", NOW_MS)
    assert (future.key, future.run.queue_id) == (key_number(ORIGIN, NOW_MS, 1), 0)


@FORMS
def test_what_nobody_holds_any_more_is_collected_unsettled_or_not(loops: Any) -> None:
    class Mark:
        """Something whose end can be seen."""

    core, mark = taking(loops), Mark()
    future = core.send("a", b"x", None, None, None, None, "", NOW_MS)
    future.callbacks = [mark]
    gone = weakref.ref(mark)
    del core, mark, future
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("keys", [array("i", [1, 2]), array("q", [1]), array("d", [1, 2]), [1, 2]])
def test_keys_of_another_kind_or_number_are_refused(keys: Any) -> None:
    """The compiled form looks at them through a pointer."""
    frame = native.FrameOfRuns("")
    with pytest.raises((TypeError, ValueError)):
        frame.put_batch("a", 0, [b"x", b"y"], 9, native.Outcome(None, 1, keys))
    maker = native.RecordMaker(bytes(8), ORIGIN, SimpleNamespace(store_host_bytes=8, prop_crc=0))
    with pytest.raises((TypeError, ValueError)):
        maker.pack(bytearray(1000), [(b"\1a", 0, [b"x", b"y"], keys)])


@FORMS
def test_without_room_in_the_open_frame_nothing_is_taken_and_no_turn_used(loops: Any) -> None:
    intake = taking(loops).intake
    message = "a", b"x", None, None, None, None, "", NOW_MS
    assert intake.take(*message) is NO_ROOM
    assert intake.take_batch("a", [b"x"], None, "", NOW_MS) is NO_ROOM
    intake.frame = loops.FrameOfRuns("written")
    assert intake.take(*message) is NO_ROOM, "the frame is of another kind"
    intake.frame = frame = loops.FrameOfRuns("durable")
    frame.size = FRAME_BYTES - FIXED_BYTES - 1
    assert intake.take(*message) is NO_ROOM, "it is full"
    frame.size -= 1
    future = intake.take(*message)
    assert (future.key, future.run.queue_id) == (key_number(ORIGIN, NOW_MS, 1), 0)
    assert intake.unsettled == 1 and frame.size == FRAME_BYTES


@FORMS
def test_a_shard_goes_where_rocketmq_sends_it_and_a_queue_is_itself(loops: Any) -> None:
    core = taking(loops)
    for shard, queue in [("u1", None), ("ü", None), ("", None), (None, 2)]:
        future = core.send("a", b"x", None, None, shard, queue, "", NOW_MS)
        expected = shard_queue(shard, 3) if queue is None else queue
        assert (future.run.queue_id, future.run.fixed) == (expected, True), (shard, queue)
    assert core.send("a", b"x", None, None, "u1", 0, "", NOW_MS) is None, "both chosen"
    assert core.send("a", b"x", None, None, None, 3, "", NOW_MS) is None
    assert core.send("a", b"x", None, None, None, None, "", NOW_MS).run.queue_id == 0
    of_any_queue = taking(loops).send("a", b"x", None, None, None, None, "", NOW_MS)
    assert not of_any_queue.run.fixed, "it may go to another one"


@FORMS
def test_an_outcome_has_what_it_was_made_with_and_is_known_by_its_error(loops: Any) -> None:
    keys = array("q", [1, 2])
    outcome = loops.Outcome("me", 1, keys)
    assert (outcome.sender, outcome.key, outcome.keys) == ("me", 1, keys)
    assert not outcome.done()
    outcome.error = ValueError("lost")
    assert outcome.done()


@FORMS
def test_a_batch_for_a_queue_that_was_chosen_stays_there(loops: Any) -> None:
    core = taking(loops)
    for queue in (2, None):
        future = core.send_batch("a", [b"one", b"two"], queue, "", NOW_MS)
        assert future.run.fixed == (queue is not None)


@FORMS
def test_what_was_taken_elsewhere_counts_as_well(loops: Any) -> None:
    intake = taking(loops).intake
    intake.count(2, 300)
    intake.count(-1, -100)
    assert (intake.unsettled, intake.waiting_bytes) == (1, 200)


def test_a_batch_without_the_numbers_of_its_keys_is_refused() -> None:
    """The compiled form would look for them through a pointer."""
    frame = native.FrameOfRuns("")
    with pytest.raises(ValueError, match="number of its key"):
        frame.put_batch("a", 0, [b"x"], 9, native.Outcome(None, 1))
    assert frame.runs == [] and frame.size == 0


def test_frames_and_futures_of_another_kind_are_refused() -> None:
    """The compiled form looks at them through a pointer."""
    intake = taking(native).intake
    with pytest.raises(TypeError):
        intake.frame = SimpleNamespace(size=0, ack="")
    with pytest.raises(TypeError):
        native.Intake(SimpleNamespace(outcome=int), {}, {})
    bare = native.Outcome(None, 1)
    assert not bare.done() and not bare.ask() and native.FrameRun().keys is None
    with pytest.raises(AttributeError):
        bare.keys = array("i", [1])
