"""Questions to a writer that does not answer: fewer and fewer, and soon again once it does."""

from __future__ import annotations

from threading import Condition

from penstock.client.core.sending.busy_broker import CONNECT_MS, MOST_MS, PROBE_MS, Probes
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats.message_id import key_origin
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    Appended,
    Hello,
    QueueRun,
    StoredRun,
    decode_produce_request,
    encode,
)

STEP_MS = 10
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 9))


def _core() -> ProducerCore:
    encoder = Encoder(HOST[:4], key_origin(HOST[:4], 0))
    return ProducerCore("nowhere", Condition(), 60_000, "", Packer(encoder, FrameRing(False)))


def _hellos(core: ProducerCore, first_ms: int, seconds: int) -> list[int]:
    """When it asks, looked at all the time; nobody answers."""
    asked = []
    for now_ms in range(first_ms, first_ms + seconds * 1000, STEP_MS):
        for parts in core.outgoing(now_ms):
            if isinstance(decode_produce_request(bytes(parts[0])), Hello):
                asked.append(now_ms)
    return asked


def _welcome(hello: Hello) -> messages.Welcome:
    return messages.Welcome(
        hello.producer, hello.session, hello.next_seq, 0, 1 << 20, 1 << 22, 1, 8, False, False
    )


def test_a_producer_that_waits_long_asks_less_and_less_until_a_frame_is_answered() -> None:
    core = _core()
    (parts,) = core.outgoing(0)
    hello = decode_produce_request(bytes(parts[0]))
    assert isinstance(hello, Hello)
    core.received([encode(_welcome(hello))], 0)
    core.send("orders", BatchMessage(b"x"), None, None, "", True, 0)
    (parts,) = core.outgoing(0)
    route = decode_produce_request(bytes(parts[0]))
    assert isinstance(route, messages.Route)
    core.received([encode(messages.Routed(route.request, "orders", 1))], 0)
    asked = _hellos(core, 0, 8)
    pauses = [after - before for before, after in zip([0, *asked], asked, strict=False)]
    assert pauses == sorted(pauses) and pauses[-1] == MOST_MS
    assert len(asked) < 10  # and not each PROBE_MS
    due_ms = asked[-1] + MOST_MS
    assert [core.wait_ms(due_ms - left_ms) for left_ms in (2, 1, 0)] == [2, 1, 1]
    seq = core._next_seq - 1
    core.received(
        [encode(Appended(hello.producer, hello.session, seq, (StoredRun(0, 0, 0),), 0, HOST))], 8000
    )
    assert core.intake.unsettled == 0


def test_the_next_question_comes_sooner_after_answers_in_a_new_session_and_once_connected() -> None:
    probes = Probes()
    for number in range(9):
        probes.sent(number + 1)
    assert probes.pause_ms == MOST_MS
    assert [probes.heard() for _ in range(3)] == [1, 2, 3]
    probes.frame_answered()
    assert probes.pause_ms == MOST_MS // 2
    for _ in range(9):
        probes.frame_answered()
    assert probes.pause_ms == PROBE_MS
    probes.sent(10)
    probes.forget()
    assert (probes.pause_ms, probes.heard()) == (PROBE_MS, 0)
    probes.sent(10)
    answered_ms = probes.lost(5000)
    assert probes.due_ms(answered_ms, 0) == 5000 + CONNECT_MS
    assert probes.heard() == 0


def test_an_actor_that_waits_long_asks_twice_as_often_after_each_frame_that_is_answered() -> None:
    sender = RecordSender("run", "actor", 1)
    for number in range(2):
        sender.put([QueueRun("orders", number, 1)], b"", number)
    ((raw,),) = sender.outgoing(0)
    hello = decode_produce_request(raw)
    assert isinstance(hello, Hello)
    sender.take(_welcome(hello), 0)
    assert len([*sender.outgoing(0)]) == 2
    now_ms = 0
    for _ in range(9):
        now_ms += sender.wait_ms(now_ms)
        assert [decode_produce_request(raw) for (raw,) in sender.outgoing(now_ms)] == [hello]
    assert sender.wait_ms(now_ms) == MOST_MS
    assert [sender.wait_ms(now_ms + MOST_MS - left_ms) for left_ms in (2, 1, 0)] == [2, 1, 1]
    stored = (StoredRun(0, 0, 0),)
    sender.take(Appended(hello.producer, hello.session, hello.next_seq, stored, 0, HOST), now_ms)
    assert sender.wait_ms(now_ms) == MOST_MS // 2


def test_a_session_that_nobody_opens_is_asked_for_less_and_less() -> None:
    probes = Probes()
    assert [probes.ask() for _ in range(7)] == [100, 200, 400, 800, 1600, 1600, 1600]
