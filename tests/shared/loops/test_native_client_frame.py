"""What RocketMQ's clients send, gathered for one frame: the compiled form and its twin take, pack
and answer alike, and both as a plain list would."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.record import pack_host
from penstock.shared.loops.forms import PlainRules
from penstock.shared.loops.pure.client_frame import ClientFrame

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

FORMS = [ClientFrame, native.ClientFrame]
HOST = pack_host("10.1.2.3", 54321)
RULES = PlainRules(b"A\x01b\x02", False, 1 << 20)
TOPICS = {"a": 2, "bb": 300}
KEY = "UNIQ_KEY\x01{}\x02"
WORDS = (b"<", b"|", b"/", b"/", b"/", b">")


class Request(NamedTuple):
    """What a client sends, or what is put."""

    by: str
    topic: str
    queue_id: int
    bodies: list[bytes]
    is_batch: bool
    is_put: bool
    is_oneway: bool
    opaque: int
    is_unusual: bool


def frame_of(request: Request) -> bytes:
    fields = {
        **{"a": "PG", "b": request.topic, "c": "T", "d": "4", "e": str(request.queue_id)},
        **{"f": "0", "g": "1700000000123", "h": "7", "j": "0", "k": "false"},
        "i": KEY.format(f"K{request.opaque % 1000}"),
        "m": "true" if request.is_batch else "false",
    }
    header = {
        "code": 320 if request.is_batch else 310, "extFields": fields,
        "flag": 2 * request.is_oneway, "language": "JAVA", "opaque": request.opaque,
    }  # fmt: skip
    # a blank is JSON, and not as Java writes it
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw = raw[:-1] + b" }" if request.is_unusual else raw
    body = b"".join(map(item, request.bodies)) if request.is_batch else request.bodies[0]
    return (4 + len(raw) + len(body)).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw + body


def item(body: bytes) -> bytes:
    size = (22 + len(body)).to_bytes(4, "big")
    return size + bytes(12) + len(body).to_bytes(4, "big") + body + bytes(2)


def records_of(request: Request, kind: Any = ClientFrame) -> bytes:
    alone = kind(RULES)
    alone.take(frame_of(request), 0, request.by, HOST, TOPICS, 1)
    return bytes(alone.pack()[1])


bodies = st.lists(st.binary(max_size=9), min_size=1, max_size=4)
requests = st.builds(
    Request, st.sampled_from("xyz"), st.sampled_from(["a", "bb"]), st.integers(0, 1), bodies,
    st.booleans(), st.booleans(), st.booleans(), st.integers(-(2**31), 2**31 - 1), st.booleans(),
).map(lambda one: one if one.is_batch else one._replace(bodies=one.bodies[:1]))  # fmt: skip


def filled(kind: Any, all_of: list[Request], rules: PlainRules = RULES) -> Any:
    """A frame with as many of them as are taken; how many."""
    found = kind(rules)
    for count, request in enumerate(all_of):
        if request.is_put:
            records = records_of(request)
            sizes = [len(records)] if not request.is_batch else sizes_of(records)
            said = request.topic, request.queue_id, records, sizes, request.is_batch
            if not found.put(("put", count), *said):
                return found, count
            continue
        data = b"before" + frame_of(request) + b"\0"
        at = found.take(data, 6, request.by, HOST, TOPICS, 9)
        if at == 6:
            return found, count
        assert at == len(data) - 1
    return found, len(all_of)


def sizes_of(records: bytes) -> list[int]:
    sizes = []
    while sum(sizes) < len(records):
        at = sum(sizes)
        sizes.append(int.from_bytes(records[at : at + 4], "big"))
    return sizes


def in_runs(all_of: list[Request]) -> list[list[tuple[int, Request]]]:
    """Their order in a frame: a queue's messages together, and each batch by itself."""
    runs: list[list[tuple[int, Request]]] = []
    going_on: dict[tuple[str, int], list[tuple[int, Request]]] = {}
    for each in enumerate(all_of):
        key = each[1].topic, each[1].queue_id
        if each[1].is_batch:
            going_on.pop(key, None)
            runs.append([each])
        elif key in going_on:
            going_on[key].append(each)
        else:
            going_on[key] = [each]
            runs.append(going_on[key])
    return runs


@pytest.mark.parametrize("kind", FORMS)
@given(st.lists(requests, max_size=8), st.data())
def test_each_is_answered_with_the_place_of_its_records(
    kind: Any, all_of: list[Request], data: st.DataObject
) -> None:
    """A run may begin at any record, as in a frame that was sent again."""
    frame, count = filled(kind, all_of)
    assert count == len(all_of) == frame.requests
    runs = in_runs(all_of)
    packed, records = frame.pack()
    assert packed == [
        (run[0][1].topic, run[0][1].queue_id, sum(len(one.bodies) for _, one in run),
         run[0][1].is_batch)
        for run in runs
    ]  # fmt: skip
    assert records == b"".join(records_of(one) for run in runs for _, one in run)
    places: list[tuple[int, int, int]] = []
    answers: dict[str, bytes] = {}
    others, asked = [], []
    number = offset = position = 0
    for run in runs:
        is_first = True
        for index, one in run:
            ids, first = [], -1
            for size in sizes_of(records_of(one)):
                if is_first or data.draw(st.booleans()):
                    offset, position = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 999))
                    places.append((number, offset, position))
                is_first, first = False, offset if first < 0 else first
                ids.append(f"L{position:016X}")
                number, offset, position = number + 1, offset + 1, position + size
            said = ",".join(ids)
            is_oneway = one.is_oneway and not one.is_put
            asked.append(
                (("put", index), 0, False) if one.is_put else (one.by, one.opaque, is_oneway)
            )
            if one.is_put:
                others.append((("put", index), first, said))
            elif not is_oneway:
                key = "" if one.is_batch else f"/K{one.opaque % 1000}"
                text = f"<{one.opaque}|{said}/{one.queue_id}/{first}{key}>".encode()
                head = (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big")
                answers[one.by] = answers.get(one.by, b"") + head + text
    assert frame.asked() == asked
    assert frame.answers(WORDS, b"L", places) == (answers, others)
    parts = frame.parts()
    assert b"".join(part.pack()[1] for part in parts) == records
    assert [each for part in parts for each in part.asked()] == asked
    for part, (_, one) in zip(parts, (each for run in runs for each in run), strict=True):
        alone = filled(ClientFrame, [one])[0].answers(WORDS, b"L", [(0, 1, 2)])
        found = part.answers(WORDS, b"L", [(0, 1, 2)])
        assert found[0] == alone[0]
        assert [told[1:] for told in found[1]] == [told[1:] for told in alone[1]]


@given(st.lists(requests, max_size=8), st.integers(0, 900), st.integers(1, 9))
def test_frames_are_full_alike(all_of: list[Request], most_bytes: int, most_records: int) -> None:
    rules = RULES._replace(most_bytes=most_bytes, most_records=most_records)
    (one, count), (other, expected) = (filled(kind, all_of, rules) for kind in FORMS)
    assert (count, one.is_full) == (expected, other.is_full)
    assert one.is_full == (count < len(all_of))
    assert (one.size, one.count, one.requests) == (other.size, other.count, other.requests)
    assert one.pack() == other.pack()
    is_within = one.size <= most_bytes and one.count <= most_records
    assert one.requests < 2 or is_within, "what fits no frame is alone in one"


ONE = Request("x", "a", 1, [b"body"], False, False, False, 1, False)


@pytest.mark.parametrize("kind", FORMS)
def test_it_stops_at_the_first_that_is_not_taken(kind: Any) -> None:
    good, size = frame_of(ONE), len(frame_of(ONE))
    bad = [
        frame_of(ONE._replace(topic="c")),  # there is no such topic
        frame_of(ONE._replace(queue_id=2)),
        frame_of(ONE).replace(b":310", b":311"),
        frame_of(ONE._replace(is_unusual=True, topic="c")),
        frame_of(ONE._replace(is_unusual=True, queue_id=2)),
        *(length.to_bytes(4, "big", signed=True) + good[4:] for length in (-1, 0, 3, 1 << 30)),
    ]
    last = [good[:cut] for cut in (0, 3, 4, 5, size - 1)]
    for each in [*(one + good for one in bad), *last]:
        frame = kind(RULES)
        assert frame.take(bytearray(good * 2 + each), 0, "x", HOST, TOPICS, 9) == 2 * size
        assert frame.requests == 2
    frame = kind(RULES)
    assert frame.take(good * 5, size, "x", HOST, TOPICS, 3) == 4 * size
    assert frame.take(good * 5, 4 * size, "x", HOST[:4], TOPICS, 3) == 4 * size
    assert not frame.is_full


@pytest.mark.parametrize("kind", FORMS)
def test_nothing_is_taken_into_a_frame_that_is_packed(kind: Any) -> None:
    frame = kind(RULES)
    with pytest.raises(ValueError, match="inside"):
        frame.take(b"12345", 6, "x", HOST, TOPICS, 1)
    with pytest.raises(ValueError, match="sizes"):
        frame.put("x", "a", 0, b"12345", [4], False)
    assert frame.pack() == ([], b"") and frame.parts() == frame.asked() == []
    with pytest.raises(ValueError, match="packed"):
        frame.take(frame_of(ONE), 0, "x", HOST, TOPICS, 1)
    with pytest.raises(ValueError, match="packed"):
        frame.put("x", "a", 0, b"12345", [5], False)


@pytest.mark.parametrize("kind", FORMS)
def test_whatever_is_asked_of_a_frame_first_packs_it(kind: Any) -> None:
    two = [ONE, ONE._replace(queue_id=0, is_batch=True), ONE._replace(opaque=2)]
    place = [(0, 5, 77)]
    packed = filled(kind, two)[0]
    packed.pack()
    said = packed.answers(WORDS, b"L", place), packed.asked(), len(packed.parts())
    fresh = [filled(kind, two)[0] for _ in range(3)]
    parts = fresh[2].parts()
    assert (fresh[0].answers(WORDS, b"L", place), fresh[1].asked(), len(parts)) == said
    for each in fresh:
        with pytest.raises(ValueError, match="packed"):
            each.put("x", "a", 0, b"", [], False)
        assert each.pack() == packed.pack()


def test_a_frame_of_a_thousand_records_is_answered_alike() -> None:
    """More than there is room for at first, by several clients, a batch among them."""
    several = [ONE._replace(by="xyz"[number % 3], opaque=number) for number in range(400)]
    bodies = [b"%d" % number for number in range(600)]
    several.append(several[0]._replace(bodies=bodies, is_batch=True))
    frames = [filled(kind, several)[0] for kind in FORMS]
    assert [frame.count for frame in frames] == [1000, 1000]
    assert frames[0].pack() == frames[1].pack()
    answers = [frame.answers(WORDS, b"L", [(0, 7, 0), (500, 9, 99)]) for frame in frames]
    assert answers[0] == answers[1]
