"""Members of groups against a broker, in this process: what each shape gives and commits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Producer
from penstock.client.groups import consumer as consumer_module
from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.local_offsets import HOME_VARIABLE, decode_offsets
from penstock.client.groups.member_loop import MemberLoop
from penstock.client.groups.message import GroupMessage, given_back
from penstock.client.groups.options import Sql
from penstock.shared.errors import (
    BrokerTimeout,
    FilterError,
    InvalidArgument,
    NoPermission,
    StoreUnavailable,
)

pytestmark = pytest.mark.takes(15)

WAIT_S = 60


@pytest.fixture
def topic(broker: Any, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, of 4 queues with 5 messages each."""
    name = "t" + format(abs(hash(request.node.name)) % 10**9)
    with Producer(store=broker.store) as producer:
        producer.create_topic(name, 4)
        for number in range(20):
            tag = "even" if number % 2 == 0 else "odd"
            properties = {"number": str(number)}
            producer.send(name, b"%d" % number, queue=number % 4, tags=tag, properties=properties)
    return name


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.01)


def take(consumer: GroupConsumer, count: int) -> list[bytes]:
    """The next messages, acknowledged."""
    found = []
    for message in consumer:
        found.append(message.body)
        message.ack()
        if len(found) == count:
            break
    return found


def numbers(count: int = 20) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_what_is_acknowledged_is_never_given_out_again(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        found = take(consumer, 12)
        assert len(set(found)) == 12
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as consumer:
        assert sorted(found + take(consumer, 8), key=int) == numbers()
        consumer.commit()
        assert sum(offset for (of, _), offset in consumer.committed.items() if of == topic) == 20


def test_a_young_queue_is_read_from_its_beginning_as_in_rocketmq(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="last") as consumer:
        assert sorted(take(consumer, 20), key=int) == numbers()


def test_a_loop_that_is_left_half_way_gives_the_rest_back(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        consumer._pace.most = 5
        found = take(consumer, 3)
        assert sorted(found + take(consumer, 17), key=int) == numbers()


def test_a_handler_in_threads_is_given_everything_once(broker: Any, topic: str) -> None:
    consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    lock, found, threads = threading.Lock(), [], set()

    def handle(message: GroupMessage) -> None:
        with lock:
            found.append(message.body)
            threads.add(threading.get_ident())
            if len(found) == 20:
                consumer.stop()

    consumer.run(handle, workers=3)
    assert sorted(found, key=int) == numbers()
    assert threading.get_ident() not in threads
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as after:
        assert not after.poll(0.5)
        assert sum(offset for (of, _), offset in after.assignment.items() if of == topic) == 20


def test_batches_are_of_one_queue_in_order(broker: Any, topic: str) -> None:
    consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    batches: list[list[tuple[int, int]]] = []

    def handle(batch: Any) -> None:
        batches.append([(each.queue_id, each.queue_offset) for each in batch])
        if sum(map(len, batches)) == 20:
            consumer.stop()

    consumer.run(handle, workers=1, batch=3)
    for batch in batches:
        assert 1 <= len(batch) <= 3
        assert batch == [(batch[0][0], batch[0][1] + at) for at in range(len(batch))]


def test_a_message_that_came_too_often_is_a_dead_letter_with_its_reason(
    broker: Any, topic: str
) -> None:
    consumer = GroupConsumer(
        store=broker.store, group=topic, topics=topic, start="first", max_times=0
    )
    seen: list[bytes] = []

    def handle(message: GroupMessage) -> None:
        seen.append(message.body)
        if len(seen) == 20:
            consumer.stop()
        if message.body == b"7":
            raise ValueError("seven\nis odd")

    consumer.run(handle, workers=1)
    with Consumer(store=broker.store, topic=f"%DLQ%{topic}", follow=False) as dead:
        (letter,) = list(dead)
    assert letter.body == b"7"
    assert letter.reconsume_times == 1
    found = letter.properties
    assert (found["RETRY_TOPIC"], found["RETRY_REASON"]) == (topic, "ValueError: seven is odd")
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as after:
        assert not after.poll(0.5), "the letter stands for it"


@pytest.mark.parametrize(("delay", "delay_ms"), [(0, 0), (0.0101, 11), (1e-9, 1), (2, 2000)])
def test_a_retry_never_comes_before_its_delay(delay: float, delay_ms: int) -> None:
    assert given_back(0, delay, None, "").delay_ms == delay_ms


def test_retries_go_to_all_queues_that_the_group_has_for_them(broker: Any, topic: str) -> None:
    with GroupAdmin(store=broker.store) as admin:
        admin.set(topic, {"retryQueueNums": 3})
        with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:
            for _ in range(20):
                (message,) = consumer.poll(WAIT_S, most=1)
                message.retry(delay=0)
            assert sorted(take(consumer, 20), key=int) == numbers()
        found = admin.queues(f"%RETRY%{topic}").queues
    assert len(found) == 3
    assert sum(each.max_offset > 0 for each in found) > 1


def test_a_signal_between_a_look_and_the_wait_after_it_ends_the_wait(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler runs in the thread that is about to wait, and finds nobody to wake yet."""
    with GroupConsumer(broker_endpoint(broker), topic, topic, start="first") as consumer:
        take(consumer, 20)
        wait = consumer.loop.work.wait

        def handled_before(timeout: float | None) -> bool:
            consumer.stop()
            return wait(timeout)

        monkeypatch.setattr(consumer.loop.work, "wait", handled_before)
        began = time.monotonic()
        assert consumer.poll(WAIT_S) == ()
        assert time.monotonic() - began < WAIT_S / 2


def test_an_orderly_queue_stops_until_its_message_is_handled(broker: Any, topic: str) -> None:
    consumer = GroupConsumer(*(broker_endpoint(broker), topic, topic), start="first", suspend_ms=50)
    seen: list[tuple[int, int]] = []
    done: list[tuple[int, int]] = []

    def handle(message: GroupMessage) -> None:
        at = message.queue_id, message.queue_offset
        seen.append(at)
        if at == (2, 1) and message.reconsume_times < 2:
            raise RuntimeError("not yet")
        done.append(at)
        if len(done) == 20:
            consumer.stop()

    consumer.run(handle, workers=3, orderly=True)
    assert seen.count((2, 1)) == 3
    for queue_id in range(4):
        assert [at for of, at in done if of == queue_id] == list(range(5))
    where = [at for of, at in seen if of == 2]
    assert where == [0, 1, 1, 1, 2, 3, 4]


def broker_endpoint(broker: Any) -> str:
    """Any of a broker's endpoints leads to the others."""
    endpoint: str = broker.produce
    return endpoint


def test_by_hand_nothing_is_done_before_it_is_committed(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        first = consumer.poll(WAIT_S)
        assert first
        consumer.commit()
        second = consumer.poll(WAIT_S)
        assert second
    again: list[bytes] = []
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as consumer:
        while len(again) < 20 - len(first):
            batch = consumer.poll(WAIT_S)
            assert batch
            again += [message.body for message in batch]
    assert sorted([*again, *(message.body for message in first)], key=int) == numbers()


def test_seek_pause_and_assign(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        consumer.assign({topic: [1, 2], f"%RETRY%{topic}": []})
        found = take(consumer, 10)
        assert sorted(found, key=int) == [b"%d" % n for n in range(20) if n % 4 in (1, 2)]
        consumer.seek(topic, 1, 3)
        assert take(consumer, 2) == [b"13", b"17"]
        consumer.pause((topic, 1))
        consumer.seek(topic, 1, 0)
        assert not consumer.poll(0.3)
        consumer.resume()
        assert consumer.poll(WAIT_S)[0].body == b"1"
        with pytest.raises(InvalidArgument, match="is not the member's"):
            consumer.seek(topic, 3, 0)
        unknown: Any = None
        for unknown, said in (
            (None, "a queue is not a topic and the number of a queue"),
            ((topic,), "a queue is not a topic and the number of a queue"),
            ([(topic, 1)], "a queue is not a topic and the number of a queue"),
            ((topic, "1"), "a queue's number is not a whole number"),
        ):
            with pytest.raises(InvalidArgument, match=said):
                consumer.pause(unknown)
        for unknown, said in (
            ([topic], "queues is not a mapping"),
            ({topic: 1}, "is not a list of whole numbers"),
            ({topic: [-1]}, "is less than 0"),
        ):
            with pytest.raises(InvalidArgument, match=said):
                consumer.assign(unknown)
        with pytest.raises(InvalidArgument, match="offset is more than"):
            consumer.seek(topic, 1, 1 << 62)
        consumer.assign(None)
        wait_for(lambda: len(consumer.assignment) >= 4)


def test_an_offset_past_a_queues_end_does_not_stay_committed(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        take(consumer, 20)
        consumer.seek(topic, 0, 1000)
        consumer.commit(WAIT_S)
        # as soon as the broker has said where the queue ends
        wait_for(lambda: consumer.committed[topic, 0] == 5)
    with Producer(broker.produce) as producer:
        producer.send(topic, b"meanwhile", queue=0)
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as consumer:
        assert take(consumer, 1) == [b"meanwhile"]


def test_a_commit_after_a_seek_back_waits_until_the_broker_knows(
    broker: Any, topic: str, frozen: Callable[..., Any]
) -> None:
    with GroupConsumer(
        store=broker.store, group=topic, topics=topic, start="first", session_timeout_ms=60_000
    ) as consumer:
        take(consumer, 20)
        consumer.commit()
        with frozen(broker, "coordinator"):
            consumer.seek(topic, 0, 0)
            with pytest.raises(BrokerTimeout):
                consumer.commit(timeout=0.1)
        consumer.commit(WAIT_S)
        assert consumer.committed[topic, 0] == 0
    with GroupAdmin(store=broker.store) as admin:
        told = {(each.topic, each.queue_id): each.offset for each in admin.describe(topic).queues}
    assert told[topic, 0] == 0


def test_two_members_share_and_one_that_leaves_hands_over_at_once(broker: Any, topic: str) -> None:
    first = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    second = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")

    def queues(consumer: GroupConsumer) -> set[int]:
        return {queue for of, queue in consumer.assignment if of == topic}

    with first:
        with second:
            first.poll(0.01)
            second.poll(0.01)
            wait_for(lambda: len(queues(first)) == 2 and len(queues(second)) == 2)
            assert queues(first) | queues(second) == {0, 1, 2, 3}
        wait_for(lambda: len(queues(first)) == 4)


def test_what_a_closing_member_does_not_work_on_goes_to_others_at_once(
    broker: Any, topic: str
) -> None:
    """Its last handler may take as long as closing waits for it."""
    closing = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    begun, may_end = threading.Event(), threading.Event()
    held: list[int] = []

    def handle(message: GroupMessage) -> None:
        held.append(message.queue_id)
        begun.set()
        may_end.wait(4 * WAIT_S)

    thread = threading.Thread(target=closing.run, args=(handle, 1))
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        closing.stop()
        with GroupConsumer(store=broker.store, group=topic, topics=topic) as other:
            assert len({int(body) % 4 for body in take(other, 15)} - {*held}) == 3
            assert not may_end.is_set() and thread.is_alive()
            may_end.set()
            assert {int(body) % 4 for body in take(other, 4)} == {*held}
    finally:
        may_end.set()
        thread.join()


def test_tags_and_sql_choose_for_each_topic(broker: Any, topic: str) -> None:
    with GroupConsumer(
        store=broker.store, group=topic, topics={topic: "odd"}, start="first"
    ) as consumer:
        assert sorted(take(consumer, 10), key=int) == [b"%d" % n for n in range(1, 20, 2)]
        consumer.commit()
        wait_for(lambda: sum(at for (of, _), at in consumer.committed.items() if of == topic) == 20)
    with GroupConsumer(
        store=broker.store, group=topic + "s", topics={topic: Sql("number > 16")}, start="first"
    ) as consumer:
        assert sorted(take(consumer, 3), key=int) == [b"17", b"18", b"19"]


def test_each_member_of_a_broadcasting_group_has_everything_and_keeps_its_place(
    broker: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    for name in ("a", "b"):
        with GroupConsumer(
            *(broker.consume, topic, topic), client_id=name, broadcasting=True, start="first"
        ) as member:
            assert sorted(take(member, 20), key=int) == numbers()
    kept = decode_offsets((tmp_path / "a" / topic / "offsets.json").read_bytes())
    assert kept == {(topic, queue): 5 for queue in range(4)}
    with Producer(store=broker.store) as producer:
        producer.send(topic, b"new", queue=0).result(WAIT_S)
    with GroupConsumer(
        store=broker.store, group=topic, topics=topic, client_id="a", broadcasting=True
    ) as member:
        assert take(member, 1) == [b"new"]


def test_a_broadcasting_member_commits_into_its_file(
    broker: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    with GroupConsumer(
        *(broker.consume, topic, topic), client_id="a", broadcasting=True, start="first"
    ) as member:
        file = tmp_path / "a" / topic / "offsets.json"
        for count in (1, 2):  # the second within the 5 s in which it is not saved by itself
            (message,) = member.poll(WAIT_S, most=1)
            member.commit(WAIT_S)
            kept = decode_offsets(file.read_bytes())
            assert kept[topic, message.queue_id] == message.queue_offset + 1
            assert sum(kept.values()) == count
        assert member.poll(WAIT_S, most=1)
        shutil.rmtree(file.parent)
        file.parent.write_bytes(b"")
        with pytest.raises(StoreUnavailable, match="cannot be kept"):
            member.commit(WAIT_S)
        file.parent.unlink()
        member.commit(WAIT_S)
        assert sum(decode_offsets(file.read_bytes()).values()) == 3


@pytest.mark.parametrize("batch", [1, 5])
def test_a_handler_whose_coroutine_nobody_awaits_acknowledges_nothing(
    broker: Any, topic: str, batch: int
) -> None:
    async def handle(message: GroupMessage) -> None:
        pass

    for handler in (handle, lambda message: handle(message), None):
        consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
        # what hangs ends: it has acknowledged everything then
        ending = threading.Timer(WAIT_S, consumer.stop)
        ending.start()
        with pytest.raises(InvalidArgument, match="handler"):
            consumer.run(handler, workers=2, batch=batch)  # type: ignore[arg-type]  # None is wrong
        ending.cancel()
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as after:
        assert sorted(take(after, 20), key=int) == numbers()


def test_retries_come_whatever_a_program_says_of_their_topic(broker: Any, topic: str) -> None:
    named = {topic: "*", f"%RETRY%{topic}": "nothing"}
    with GroupConsumer(store=broker.store, group=topic, topics=named, start="first") as consumer:
        (message, *_) = consumer.poll(WAIT_S, 1)
        message.retry(delay=0)
        again: list[bytes] = []
        until = time.monotonic() + WAIT_S
        while not again and time.monotonic() < until:
            again += [each.body for each in consumer.poll(1) if each.reconsume_times]
        assert again == [message.body]


def test_members_wait_for_a_topic_that_may_not_be_read_or_is_deleted(
    broker: Any, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = topic + "x"
    consumer = GroupConsumer(store=broker.store, group=topic, topics=[topic, other], start="first")
    handled: list[bytes] = []
    running = threading.Thread(
        target=consumer.run, args=(lambda message: handled.append(message.body),), daemon=True
    )
    with Producer(store=broker.store) as producer:

        def add(to: str, count: int, body: bytes) -> None:
            for number in range(count):
                producer.send(to, body, queue=number % 4).result(WAIT_S)

        producer.create_topic(other, 4)
        running.start()
        wait_for(lambda: len(handled) == 20)
        producer.update_topic(topic, perm=2)
        wait_for(lambda: any("is waited for" in said for said in caplog.messages))
        add(topic, 8, b"late")
        add(other, 8, b"other")
        wait_for(lambda: handled[20:] == [b"other"] * 8)
        producer.update_topic(topic, perm=6)
        wait_for(lambda: handled[28:] == [b"late"] * 8)
        producer.delete_topic(topic)
        add(other, 8, b"goes on")
        wait_for(lambda: handled[36:] == [b"goes on"] * 8)
        producer.create_topic(topic, 4)
        add(topic, 8, b"again")
        wait_for(lambda: handled[44:].count(b"again") >= 8)
        assert running.is_alive()
        consumer.stop()
        running.join(WAIT_S)
    said = [each for each in caplog.messages if "is waited for" in each]
    assert len(said) == 1 and "has permission 2" in said[0]


def test_a_handler_that_never_ends_is_waited_for_once(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_module, "CLOSE_S", 0.2)
    consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    began, may_end = threading.Event(), threading.Event()

    def handle(message: GroupMessage) -> None:
        began.set()
        may_end.wait()

    running = threading.Thread(target=consumer.run, args=(handle, 1), daemon=True)
    running.start()
    assert began.wait(WAIT_S)
    consumer.stop()
    running.join(20)  # `close` by itself would wait for 30 s more
    assert not running.is_alive()
    assert "1 of its handlers have not" in caplog.text
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as after:
        assert sorted(take(after, 20), key=int) == numbers()
    may_end.set()


@pytest.mark.parametrize("broadcasting", [False, True])
def test_a_second_member_of_one_client_id_is_refused(
    broker: Any, topic: str, broadcasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    same: dict[str, Any] = {
        "store": broker.store, "group": topic, "topics": topic, "start": "first",
        "client_id": "worker", "broadcasting": broadcasting,
    }  # fmt: skip
    with GroupConsumer(**same) as first:
        (one, *_) = first.poll(WAIT_S, 1)
        one.ack()
        refused = pytest.raises(InvalidArgument, match="another process is this member")
        with GroupConsumer(**same) as second, refused:
            second.poll(WAIT_S)
        found = [one.body, *take(first, 19)]
    assert sorted(found, key=int) == numbers()
    with GroupConsumer(**same) as after:
        assert not after.poll(0.5), "who comes later goes on"


@pytest.mark.parametrize("model", ["clustering", "broadcasting"])
def test_a_running_member_waits_while_its_group_is_switched_off(
    broker: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    broadcasting = model == "broadcasting"
    setting = "consumeBroadcastEnable" if broadcasting else "consumeEnable"
    mine = {"store": broker.store, "group": topic, "topics": topic, "start": "first"}
    with (
        GroupConsumer(**mine, broadcasting=broadcasting, session_timeout_ms=2000) as consumer,
        GroupAdmin(store=broker.store) as admin,
    ):
        (first,) = consumer.poll(WAIT_S, most=1)
        admin.set(topic, {setting: False})
        wait_for(lambda: consumer.loop.core.membership.is_off)
        assert not consumer.poll(0.1)
        first.ack()  # it was begun before, and is done
        wait_for(lambda: not any(each.owner for each in admin.describe(topic).queues))
        with (
            GroupConsumer(**mine, client_id="new", broadcasting=broadcasting) as another,
            pytest.raises(NoPermission, match="switched off"),
        ):
            another.poll(WAIT_S)
        admin.set(topic, {setting: True})
        rest = sorted(take(consumer, 19), key=int)
        assert rest == [each for each in numbers() if each != first.body]


def test_a_handler_may_close_its_consumer(broker: Any, topic: str) -> None:
    consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    seen = []

    def handle(message: GroupMessage) -> None:
        seen.append(message.body)
        consumer.close()

    began = time.monotonic()
    consumer.run(handle, workers=1)
    assert time.monotonic() - began < 20, "it waited for itself"
    rest = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    with rest:
        assert sorted(seen + take(rest, 20 - len(seen)), key=int) == numbers()


def test_what_is_wrong_is_told_before_anybody_is_asked(broker: Any) -> None:
    mistakes: tuple[dict[str, Any], ...] = (
        {"group": "a b"},
        {"topics": []},
        {"strategy": "ROUND_ROBIN"},
        {"start": 5},
        {"session_timeout_ms": 5},
        {"topics": {"orders": 5}},
        {"client_id": 7},
        {"max_times": -1},
        {"max_times": "3"},
        {"suspend_ms": -1},
        {"consume_timeout_ms": 0},
    )
    for wrong in mistakes:
        usual: dict[str, Any] = {"group": "g", "topics": "orders", "store": broker.store}
        with pytest.raises(InvalidArgument):
            GroupConsumer(**(usual | wrong))
    with pytest.raises(FilterError):
        GroupConsumer(store=broker.store, group="g", topics="orders", sql="a >")
    with (
        GroupAdmin(store=broker.store) as admin,
        pytest.raises(InvalidArgument, match="no queue can"),
    ):
        admin.reset("g", "orders", {0: -1})
    closed = GroupConsumer(store=broker.store, group="g", topics="orders")
    closed.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        closed.poll(0)


def test_one_that_was_closed_says_so_whatever_it_is_asked_for(broker: Any, topic: str) -> None:
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        take(consumer, 1)
    asked: tuple[Callable[[], object], ...] = (
        lambda: consumer.poll(0),
        lambda: consumer.poll_arrow(0),
        lambda: consumer.commit(0),
        lambda: consumer.seek(topic, 0, 0),
        consumer.pause,
        consumer.resume,
        lambda: consumer.assign({topic: [0]}),
        lambda: list(consumer),
        lambda: consumer.run(print),
        consumer.exactly_once,
    )
    for ask in asked:
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            ask()
    consumer.close()
    # how far it came can be asked still
    assert 1 in consumer.committed.values()
    assert set(consumer.assignment) <= {(topic, queue) for queue in range(4)}


def test_a_coordinator_that_dies_is_waited_for(broker_in: Any, tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 2)
        for number in range(10):
            producer.send("orders", b"%d" % number)
    with GroupConsumer(store=broker.store, group="g", topics="orders", start="first") as consumer:
        found = take(consumer, 4)
        pid = next(
            each["pid"] for each in broker.status()["actors"] if each["name"] == "coordinator"
        )
        os.kill(pid, signal.SIGKILL)
        found += take(consumer, 6)
        consumer.commit(WAIT_S)
        assert sorted(found, key=int) == numbers(10)
        assert sum(at for (of, _), at in consumer.committed.items() if of == "orders") == 10


def test_a_member_follows_its_broker_to_another_run(broker_in: Any, tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 2)
        for number in range(10):
            producer.send("orders", b"%d" % number)
    with GroupConsumer(
        store=broker.store, group="g", topics="orders", start="first", max_times=0
    ) as consumer:
        found = take(consumer, 4)
        consumer.commit()
        broker.kill()
        broker_in(tmp_path)
        for message in consumer:
            found.append(message.body)
            message.retry()  # a dead letter, which the next broker has to store
            if len(found) == 10:
                break
        wait_for(lambda: sum(consumer.committed.values()) == 10)
    assert sorted(found, key=int) == numbers(10)
    with Consumer(store=broker.store, topic="%DLQ%g", follow=False) as dead:
        assert sorted((each.body for each in dead), key=int) == sorted(found[4:], key=int)


def test_each_topic_of_a_member_follows_its_broker_to_another_run(
    broker_in: Any, tmp_path: Path
) -> None:
    broker = broker_in(tmp_path)
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 1)
        producer.create_topic("returns", 1)
        producer.create_topic("%RETRY%g", 1)
        producer.send("orders", b"0")
        producer.send("returns", b"1")
    topics = ["orders", "returns"]
    with GroupConsumer(store=broker.store, group="g", topics=topics, start="first") as consumer:
        assert sorted(take(consumer, 2)) == numbers(2)
        wait_for(lambda: len(consumer.assignment) == 3)  # its retries, too
        broker.kill()
        broker_in(tmp_path)
        with Producer(store=broker.store) as producer:
            producer.send("orders", b"2")
            producer.send("returns", b"3")
        found: list[bytes] = []
        while len(found) < 3:
            for message in consumer.poll(WAIT_S):
                times = message.reconsume_times
                found.append(b"%s, %d" % (message.body, times))
                if not times and message.body == b"2":
                    message.retry(delay=0.1)
                else:
                    message.ack()
        assert not consumer.poll(0.5)
    assert sorted(found) == [b"2, 0", b"2, 1", b"3, 0"]


def test_a_consumer_that_is_forgotten_leaves(broker: Any, topic: str) -> None:
    forgotten = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    forgotten.poll(WAIT_S)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del forgotten
    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as heir:
        assert sorted(take(heir, 20), key=int) == numbers()


def test_a_run_whose_threads_cannot_be_made_closes_the_consumer(broker: Any, topic: str) -> None:
    consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
    consumer.poll(0)  # it joins
    threading.stack_size(1 << 45)  # more than any machine has
    try:
        with pytest.raises(RuntimeError, match="thread"):
            consumer.run(lambda message: None, workers=2)
    finally:
        threading.stack_size(0)
    assert consumer.loop.ended


FORKED = """
import os, signal, sys, threading
from penstock.client import GroupConsumer
from penstock.shared.errors import StoreUnavailable
consumer = GroupConsumer(store=sys.argv[1], group=sys.argv[2], topics=sys.argv[2])
consumer.poll(0)
held, over = threading.Event(), threading.Event()

def hold():
    with consumer.loop.lock:
        held.set()
        over.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
if not (child := os.fork()):
    signal.alarm(20)  # one that hangs ends by itself
    try:
        with consumer:
            consumer.commit(0)
    except StoreUnavailable as error:
        os._exit(42 if "another process" in str(error) else 1)
over.set()
holder.join()
consumer.close()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_that_leaves_its_block_waits_for_no_lock(broker: Any, topic: str) -> None:
    """Another thread may have it while the process forks, and nobody in the fork gives it back."""
    program = [sys.executable, "-W", "ignore", "-c", FORKED, str(broker.store), topic]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.stdout.strip() == "42", ended.stderr


def test_a_consumer_that_is_closed_while_another_thread_joins_leaves_no_member(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, make_loop = threading.Event(), threading.Event(), GroupConsumer._make_loop
    found: list[Any] = []

    def slow(consumer: GroupConsumer) -> Any:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return make_loop(consumer)

    monkeypatch.setattr(GroupConsumer, "_make_loop", slow)
    with GroupConsumer(store=broker.store, group=topic, topics=topic) as consumer:
        polling = threading.Thread(target=lambda: found.append(consumer.poll(None)))
        polling.start()
        assert begun.wait(WAIT_S)
        consumer.close()
        may_go_on.set()
        polling.join(WAIT_S)
        consumer.loop._thread.join(WAIT_S)
        assert consumer.loop.ended and [len(each) for each in found] == [0]


def test_a_member_that_was_woken_turns_only_when_there_is_something_to_do(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its thread would take a whole processor, and do the same."""
    turns, turn = [], MemberLoop._turn

    def note(loop: MemberLoop) -> None:
        turns.append(time.monotonic())
        turn(loop)

    with GroupConsumer(store=broker.store, group=topic, topics=topic, start="first") as consumer:
        assert len(take(consumer, 20)) == 20
        loop = consumer._open()

        def is_woken() -> bool:
            with loop.lock:
                was_asleep = loop.asleep
                loop.wake()
            return was_asleep

        wait_for(is_woken)
        monkeypatch.setattr(MemberLoop, "_turn", note)
        assert not consumer.poll(1.0)
        assert len(turns) < 100
