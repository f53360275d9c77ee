"""The way of a plain message from its caller to the open frame, compiled and in Python, and the
lock that both take."""

from __future__ import annotations

import random
import threading
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.loops.forms import FRAME_BYTES, Plain
from penstock.shared.loops.pure import intake, sending, sends

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

pure = SimpleNamespace(**{**vars(sends), **vars(intake), **vars(sending)})
FORMS = pytest.mark.parametrize("loops", [native, pure], ids=["native", "pure"])
ORIGIN = KeyOrigin("0A" * 10, 1_698_796_800_000)
NOW_MS = 1_700_000_000_000
MOST = 5000
PLAIN = ("a", b"x", None, None, None, None, "")


class Sending:
    """A sender with what it needs."""

    def __init__(self, loops: Any) -> None:
        class Future(loops.Outcome):
            __slots__ = ()

        limit = SimpleNamespace(max_message_bytes=0)
        numbers = loops.KeyNumbers(ORIGIN)
        plain = Plain(Future, "me", "durable", numbers, limit, 180, 3000)
        self.intake = loops.Intake(plain, {"a": cycle(range(3))}, {"a": 3})
        self.lock = loops.SendLock()
        self.now_ms = NOW_MS
        clock = lambda: self.now_ms  # noqa: E731 - what is passed is a plain function
        self.try_send = loops.PlainSender(self.intake, self.lock, clock, MOST).try_send
        self._frame = loops.FrameOfRuns
        self.open()

    def open(self) -> None:
        self.intake.frame = self._frame("durable")

    def state(self) -> Any:
        frame = self.intake.frame
        runs = [(run.queue_id, run.drafts, list(run.keys)) for run in frame.runs] if frame else None
        return runs, self.intake.unsettled, self.intake.waiting_bytes


def one(rng: random.Random) -> tuple[Any, ...]:
    message: list[Any] = [
        "a",
        rng.randbytes(rng.choice((0, 100, 2999))),
        None,
        None,
        None,
        None,
        "",
    ]
    if rng.random() < 0.5:
        at = rng.randrange(7)
        message[at] = rng.choice(
            (
                ("new", 5, None),
                (bytearray(3), "x", bytes(3000), None),
                ("t", "", "ü", 5, "a\x01"),
                ("k1 k2", ["k"], ""),
                ("s", "", 7),
                (0, 2, 3, -1, True, "1"),
                ("written", "durable", "never", None),
            )[at]
        )
    return tuple(message)


@pytest.mark.parametrize("seed", range(20))
def test_both_forms_take_the_same_and_leave_the_same(seed: int) -> None:
    rng = random.Random(seed)
    both = Sending(native), Sending(pure)
    taken = 0
    for _ in range(200):
        message, now_ms = one(rng), NOW_MS + rng.randrange(3)
        turn = rng.random()
        ends = []
        for each in both:
            each.now_ms = now_ms
            if turn < 0.06:
                each.open()
            elif turn < 0.08:
                each.intake.frame = None
            elif turn < 0.2:
                each.intake.closed = turn < 0.1
            elif turn < 0.5:
                each.intake.count(0, -each.intake.waiting_bytes)
            before = each.state()
            try:
                future = each.try_send(*message)
            except InvalidMessage as error:
                ends.append(str(error))
                assert each.state() == before
                continue
            ends.append(None if future is None else (future.key, future.run.queue_id, future.index))
            assert (each.state() == before) == (future is None)
        assert ends[0] == ends[1], message
        assert both[0].state() == both[1].state()
        taken += type(ends[0]) is tuple
    assert taken > 20


@FORMS
def test_what_is_in_the_way_leaves_a_message_to_its_caller(loops: Any) -> None:
    sending = Sending(loops)
    assert sending.try_send(*PLAIN) is not None
    sending.intake.closed = True
    assert sending.try_send(*PLAIN) is None, "closed"
    sending.intake.closed = False
    sending.intake.count(0, MOST - sending.intake.waiting_bytes)
    assert sending.try_send(*PLAIN) is not None, "no more waits than may"
    assert sending.try_send(*PLAIN) is None, "too much waits"
    sending.intake.count(-1, -sending.intake.waiting_bytes)
    sending.intake.frame.size += FRAME_BYTES
    assert sending.try_send(*PLAIN) is None, "the frame is full"
    sending.intake.frame = None
    assert sending.try_send(*PLAIN) is None, "no frame is open"
    sending.open()
    assert elsewhere(sending.lock, lambda: sending.try_send(*PLAIN)) is None, "it is held"
    assert sending.intake.unsettled == 1
    with sending.lock:
        assert sending.try_send(*PLAIN) is not None, "by this thread, which may"
    assert elsewhere(None, lambda: sending.lock.acquire(blocking=False)), "left each time"


@FORMS
def test_tags_that_no_message_can_have_leave_the_lock_free(loops: Any) -> None:
    sending = Sending(loops)
    with pytest.raises(InvalidMessage):
        sending.try_send("a", b"x", "a\x01b", None, None, None, "")
    assert elsewhere(None, lambda: sending.lock.acquire(blocking=False))
    assert sending.intake.unsettled == 0


def elsewhere(held: Any, call: Any) -> Any:
    """What a call in another thread returns, while this one holds a lock or none."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    if held is None:
        thread.start()
        thread.join()
    else:
        with held:
            thread.start()
            thread.join()
    return found[0]


@FORMS
def test_the_lock_keeps_threads_apart_and_lets_its_holder_in_again(loops: Any) -> None:
    lock, seen = loops.SendLock(), [0]

    def count() -> None:
        for _ in range(2000):
            with lock, lock:
                before = seen[0]
                # others may run here, and must not come in
                threading.Event().is_set()
                seen[0] = before + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [8000]
    assert lock.acquire() and lock.acquire(blocking=False)
    assert elsewhere(None, lambda: lock.acquire(blocking=False)) is False
    lock.release()
    assert elsewhere(None, lambda: lock.acquire(blocking=False)) is False, "held once still"
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    with pytest.raises(RuntimeError):
        raise elsewhere(None, lambda: failure(lock.release))
    lock.release()


def failure(call: Any) -> Exception:
    try:
        call()
    except RuntimeError as error:
        return error
    raise AssertionError("it has not failed")


@FORMS
def test_a_condition_waits_with_the_lock_however_often_it_is_held(loops: Any) -> None:
    lock = loops.SendLock()
    condition, said = threading.Condition(lock), []

    def say() -> None:
        with condition:
            said.append("now")
            condition.notify_all()

    speaker = threading.Thread(target=say)
    with lock, condition:
        speaker.start()
        assert condition.wait_for(lambda: said, 60) == ["now"]
        assert elsewhere(None, lambda: lock.acquire(blocking=False)) is False, "it has it again"
    speaker.join()
    with pytest.raises(RuntimeError):
        condition.notify_all()
