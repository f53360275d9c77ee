"""Messages as JSON: which are found by offset, time, key and id, and what is shown of each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.monitor import messages
from penstock.actors.monitor.messages import find_messages, list_messages, number_of, shown
from penstock.actors.monitor.reading import Reading, at_once
from penstock.actors.reput import Reput
from penstock.shared.clock import ManualClock
from penstock.shared.errors import (
    BrokerTimeout,
    InvalidArgument,
    MessageNotFound,
    QueueNotFound,
    TopicNotFound,
)
from penstock.shared.formats.queue_entry import BLANK_ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import SYS_COMPRESSED
from penstock.shared.layout import CQ_ENTRY_BYTES, segment_name
from penstock.shared.loops.active import Message
from penstock.shared.memory.queue_table import QueueTable

SETTINGS = {
    "transient_store_pool_enable": False,
    "max_hash_slot_num": 7,
    "max_index_num": 200,
}


class Shown:
    """A broker's messages, and a monitor that looks at them."""

    def __init__(self, broker: Any, work: Callable[..., None]) -> None:
        self.broker, self._work = broker, work
        self._reput = broker.start(Reput)
        self.reading = Reading(broker.config, broker.run, broker.positions, broker.clock)

    def put(self, queue_id: int = 0, count: int = 1, **properties: str) -> None:
        """Store messages of `orders`, a second after each other."""
        for _ in range(count):
            self.broker.append(queue_id=queue_id, properties=properties)
            self.broker.clock.advance(1000)
        for name in ("committed", "flushed"):
            self.broker.positions.initialise(name, self.broker.positions["wrote"])
        self._work(self._reput)

    def listed(self, **query: object) -> Any:
        return at_once(list_messages(self.reading, self._words(query)))

    def offsets(self, **query: object) -> list[int]:
        return [row["offset"] for row in self.listed(**query)["rows"]]

    def found(self, **query: object) -> list[Any]:
        return list(at_once(find_messages(self.reading, self._words(query)))["rows"])

    @staticmethod
    def _words(query: dict[str, object]) -> dict[str, str]:
        return {"topic": "orders"} | {name: str(value) for name, value in query.items()}


@pytest.fixture
def orders(pipeline: Callable[..., Any], work: Callable[..., None]) -> Iterator[Shown]:
    found = Shown(pipeline(**SETTINGS), work)
    yield found
    found.reading.close()


def test_of_a_queue_some_are_listed_from_an_offset_on_or_the_newest(orders: Shown) -> None:
    orders.put(count=130)
    orders.put(3)
    found = orders.listed()
    assert found | {"rows": 0} == {
        "topic": "orders", "queue": 0, "min_offset": 0, "max_offset": 130, "rows": 0
    }  # fmt: skip
    assert orders.offsets() == [*range(110, 130)]
    assert orders.offsets(rows=3) == [127, 128, 129]
    assert orders.offsets(rows=3, offset=0) == [0, 1, 2]
    assert orders.offsets(rows=3, offset=128) == [128, 129]
    assert orders.offsets(rows=1000) == [*range(30, 130)], "no more than 100 at once"
    assert orders.offsets(offset=130) == []
    assert orders.offsets(queue=3) == [0], "it has no more"
    with pytest.raises(QueueNotFound):
        orders.listed(queue=1)


def test_of_messages_those_that_are_lost_have_an_error_and_those_that_expired_no_row(
    orders: Shown,
) -> None:
    orders.put(count=5)
    broker = orders.broker
    second = broker.stored("orders", 0)[1]
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(0, 1)
    table.close()
    with open(broker.paths.consume_queue / "orders" / "0" / segment_name(0), "r+b") as file:
        file.seek(2 * CQ_ENTRY_BYTES)
        file.write(BLANK_ENTRY)
    rows = orders.listed(offset=0)["rows"]
    assert [row["offset"] for row in rows] == [1, 2, 3, 4]
    assert [each["offset"] for each in rows if "error" in each] == [2]
    assert {name: rows[1][name] for name in ("topic", "queue")} == {"topic": "orders", "queue": 0}
    assert rows[0]["log_offset"] == second.physical_offset
    for gone in (0, 5):
        with pytest.raises(MessageNotFound, match="It has those from 1 to below 5"):
            orders.found(queue=0, offset=gone)
    assert [orders.found(queue=0, offset=at)[0]["offset"] for at in (1, 4)] == [1, 4]


def test_a_number_has_18_digits_at_most() -> None:
    assert number_of({"at": "9" * 18}, "at") == 10**18 - 1
    for wrong in ("9" * 19, "-1", "1.5", "²", "", "x"):
        with pytest.raises(InvalidArgument):
            number_of({"at": wrong}, "at")


def test_at_a_time_each_queue_has_its_first_message_of_then_or_later(orders: Shown) -> None:
    for queue_id in (2, 0, 2, 1, 0):
        orders.put(queue_id)
    times = {queue: orders.broker.stored("orders", queue) for queue in (0, 1, 2)}

    def at(ms: int) -> list[tuple[int, int]]:
        return [(row["queue"], row["offset"]) for row in orders.found(time=ms)]

    last = times[0][1].store_timestamp_ms
    assert at(0) == [(0, 0), (1, 0), (2, 0)]
    assert at(times[2][0].store_timestamp_ms + 1) == [(0, 0), (1, 0), (2, 1)]
    assert at(last) == [(0, 1)] and at(last + 1) == []


def test_by_key_all_are_found_and_by_the_id_of_their_client_the_newest(orders: Shown) -> None:
    orders.put(KEYS="k", UNIQ_KEY="U1")
    orders.put(1, KEYS="k", UNIQ_KEY="U2")
    orders.put(2, UNIQ_KEY="U2", KEYS="other")
    orders.put(3, UNIQ_KEY="U4", KEYS="U2")
    first, second, third = (orders.broker.stored("orders", queue)[0] for queue in (0, 1, 2))
    by_key = [row["log_offset"] for row in orders.found(key="k")]
    assert sorted(by_key) == [first.physical_offset, second.physical_offset]
    (by_id,) = orders.found(id="U2")
    assert by_id["log_offset"] == third.physical_offset
    (named,) = at_once(find_messages(orders.reading, {"id": by_id["message_id"]}))["rows"]
    assert named == by_id
    (begin,) = orders.found(queue=0, offset=0)
    assert begin["log_offset"] == 0
    (again,) = at_once(find_messages(orders.reading, {"id": begin["message_id"]}))["rows"]
    assert again == begin
    for query in ({"id": "U3"}, {"key": "K"}):
        with pytest.raises(MessageNotFound):
            orders.found(**query)
    with pytest.raises(InvalidArgument):
        at_once(find_messages(orders.reading, {"id": "U2"}))
    with pytest.raises(TopicNotFound):
        orders.found(topic="order", key="k")


def test_what_is_not_committed_or_has_expired_is_not_found_by_its_id(orders: Shown) -> None:
    orders.put(count=2)
    first, second = (orders.found(queue=0, offset=offset)[0] for offset in (0, 1))
    positions = orders.broker.positions
    end = positions["committed"]
    for name, at in (("committed", second["log_offset"]), ("log_start", 1)):
        before = positions[name]
        positions.initialise(name, at)
        gone, there = (second, first) if name == "committed" else (first, second)
        with pytest.raises(MessageNotFound):
            at_once(find_messages(orders.reading, {"id": gone["message_id"]}))
        found = at_once(find_messages(orders.reading, {"id": there["message_id"]}))["rows"]
        assert found == [there]
        positions.initialise(name, before)
    assert positions["committed"] == end


def test_without_an_index_nothing_is_found_by_key(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    orders = Shown(pipeline(**SETTINGS, message_index_enable=False), work)
    orders.put(KEYS="k")
    with pytest.raises(MessageNotFound, match="keeps no index"):
        orders.found(key="k")
    orders.reading.close()


def test_a_look_up_that_takes_too_long_ends_and_a_turn_of_others_is_not_counted(
    orders: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put(count=30, KEYS="k")
    clock = ManualClock()
    monkeypatch.setattr(orders.reading, "clock", clock)
    look_up = messages.look_up

    def slow(took_ms: int) -> Callable[..., Any]:
        def steps(*words: Any) -> Any:
            search = look_up(*words)
            for turn in range(3):
                clock.advance(took_ms)
                if turn < 2:
                    yield
            return (yield from search)

        return steps

    monkeypatch.setattr(messages, "look_up", slow(9))
    monkeypatch.setattr(messages, "LOOK_UP_MS", 28)
    steps = find_messages(orders.reading, {"topic": "orders", "key": "k"})
    for _ in range(3):
        next(steps)
        clock.advance(1000)  # others have their turn
    assert len(at_once(steps)["rows"]) == 30
    monkeypatch.setattr(messages, "look_up", slow(10))
    monkeypatch.setattr(messages, "LOOK_UP_MS", 30)
    with pytest.raises(BrokerTimeout):
        at_once(find_messages(orders.reading, {"topic": "orders", "key": "k"}))


def _shown(body: bytes, most_bytes: int, **words: Any) -> dict[str, Any]:
    return shown(Message(encode_record(Record("orders", body, b"", **words))), most_bytes)


@pytest.mark.parametrize(
    ("body", "most_bytes", "is_cut", "text", "json"),
    [
        (b"abc", 3, False, "abc", None),
        (b"abcd", 3, True, "abc", None),
        ("abé".encode(), 3, True, "ab", None),
        ("abé".encode(), 4, False, "abé", None),
        ("abé".encode()[:3], 4, False, None, None),
        (b'{"a":[1]}', 9, False, '{"a":[1]}', '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a":[1]}', 8, True, '{"a":[1]', None),
        (b"[1]", 9, False, "[1]", "[\n  1\n]"),
        (b'"x"', 9, False, '"x"', '"x"'),
        (b"{", 9, False, "{", None),
        (b"12", 9, False, "12", None),
        (b"\xff\x00", 9, False, None, None),
        (b"", 9, False, "", None),
    ],
)
def test_of_a_body_no_more_is_shown_than_is_asked_for_and_only_what_it_is(
    body: bytes, most_bytes: int, is_cut: bool, text: str | None, json: str | None
) -> None:
    found = _shown(body, most_bytes)
    assert (found["body_bytes"], found["is_cut"]) == (len(body), is_cut)
    assert (found["text"], found["json"], found["hex"]) == (text, json, body[:most_bytes].hex())


def test_a_body_is_shown_unpacked_and_one_that_cannot_be_says_why() -> None:
    packed = zlib.compress(b"abc")
    assert _shown(packed, 9, sys_flag=SYS_COMPRESSED)["text"] == "abc"
    found = _shown(b"no zlib", 9, sys_flag=SYS_COMPRESSED)
    assert found["body_error"] and "text" not in found and found["topic"] == "orders"
