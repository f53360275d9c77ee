"""Members of a group that work exactly once, with a broker: in both faces, alone and together."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable
from statistics import median
from threading import Event, Thread, active_count, main_thread
from typing import Any

import pytest

from penstock.client import Consumer, Producer
from penstock.client.aio.group_consumer import GroupConsumer as AioGroupConsumer
from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.consumer import GroupConsumer
from penstock.errors import InvalidArgument, StoreUnavailable

pytestmark = pytest.mark.takes(15)


@pytest.fixture
def topic(broker: Any, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, of 4 queues with 25 messages each."""
    name = "b" + format(abs(hash(request.node.name)) % 10**9)
    with Producer(store=broker.store) as producer:
        producer.create_topic(name, 4)
        producer.create_topic(name + "-out", 2)
        for number in range(100):
            producer.send(name, b"%d" % number, queue=number % 4)
    return name


def made(broker: Any, topic: str) -> list[int]:
    with Consumer(store=broker.store, topic=topic + "-out", follow=False) as consumer:
        return sorted(int(message.body) for message in consumer)


def member(broker: Any, topic: str, **more: Any) -> GroupConsumer:
    return GroupConsumer(store=broker.store, group=topic, topics=topic, start="first", **more)


def test_a_block_for_each_message_acknowledges_it_and_stores_what_it_sends(
    broker: Any, topic: str
) -> None:
    with member(broker, topic) as consumer:
        for count, message in enumerate(consumer, 1):
            with consumer.exactly_once() as out:
                out.send(topic + "-out", message.body)
            assert out.stored
            if count == 30:
                break
    assert len(made(broker, topic)) == 30
    with member(broker, topic) as consumer:
        while len(made(broker, topic)) < 100:
            batch = consumer.poll(5.0)
            with consumer.exactly_once() as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
        assert sum(offset for (of, _), offset in consumer.assignment.items() if of == topic) == 100
    assert made(broker, topic) == list(range(100))


def test_a_queue_that_was_full_is_read_on_as_soon_as_a_block_is_stored(
    broker: Any, topic: str
) -> None:
    """And not with the next turn of the member's thread, which sleeps for up to 200 ms."""
    with Producer(store=broker.store) as producer:
        producer.create_topic(topic + "-long", 1)
        for _ in range(120):
            producer.send(topic + "-long", bytes(60_000))
    took, seen = [], 0
    with member(broker, topic + "-long", max_messages=1, commit_ms=600_000) as consumer:
        while seen < 120:
            began = time.monotonic()
            batch = consumer.poll(60.0, most=120)
            took.append(time.monotonic() - began)
            with consumer.exactly_once() as out:
                out.send(topic + "-out", b"0")
            seen += len(batch)
    # the first ones find its thread awake: it has just joined
    assert len(took) > 6 and median(took[2:]) < 0.15


def test_a_block_that_raises_has_its_inputs_come_again_in_their_order(
    broker: Any, topic: str
) -> None:
    with member(broker, topic) as consumer:
        first = consumer.poll(5.0, most=5)
        with pytest.raises(ZeroDivisionError), consumer.exactly_once() as out:
            out.send(topic + "-out", b"0")
            raise ZeroDivisionError
        seen: dict[int, list[int]] = {}
        while len(made(broker, topic)) < 100:
            batch = consumer.poll(5.0, most=7)
            with consumer.exactly_once() as out:
                for each in batch:
                    seen.setdefault(each.queue_id, []).append(each.queue_offset)
                    out.send(topic + "-out", each.body)
        assert all(offsets == list(range(25)) for offsets in seen.values())
        assert len(first) == 5
    assert made(broker, topic) == list(range(100))


@pytest.mark.parametrize("ahead", [0, 3])
def test_members_that_come_and_go_do_each_input_once(broker: Any, topic: str, ahead: int) -> None:
    def work() -> None:
        with member(broker, topic) as consumer:
            for _ in range(6):
                batch = consumer.poll(0.5, most=6)
                with consumer.exactly_once(ahead) as out:
                    for each in batch:
                        out.send(topic + "-out", each.body)

    while len(made(broker, topic)) < 100:
        threads = [Thread(target=work) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
            assert not each.is_alive()
    assert Counter(made(broker, topic)) == Counter(range(100))


def test_blocks_may_be_on_their_way_while_the_next_ones_are_worked_on(
    broker: Any, topic: str
) -> None:
    with member(broker, topic) as consumer:
        for count, message in enumerate(consumer, 1):
            with consumer.exactly_once(ahead=3) as out:
                out.send(topic + "-out", message.body)
            if count == 30:
                break
    assert out.stored and len(made(broker, topic)) == 30, "to close waits for all"
    # what is on its way counts as unfinished: with so little room it is waited for, and no longer
    with member(broker, topic, max_messages=5, max_span=5) as consumer:
        for message in consumer:
            with consumer.exactly_once(ahead=9) as out:
                out.send(topic + "-out", message.body)
            if (count := count + 1) == 60:
                break
        while len(made(broker, topic)) < 100:
            batch = consumer.poll(0.5, most=3)
            with consumer.exactly_once(ahead=3) as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
        consumer.commit()
        assert sum(offset for (of, _), offset in consumer.committed.items() if of == topic) == 100
    assert made(broker, topic) == list(range(100))


def test_of_blocks_on_their_way_one_that_raises_takes_only_its_own_inputs_back(
    broker: Any, topic: str
) -> None:
    with member(broker, topic) as consumer:
        raised = 0
        while len(made(broker, topic)) < 100:
            batch = consumer.poll(0.5, most=7)
            try:
                with consumer.exactly_once(ahead=3) as out:
                    for each in batch:
                        out.send(topic + "-out", each.body)
                    if batch and batch[0].queue_offset % 3 == 1 and raised < 9:
                        raised += 1
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
    assert raised and made(broker, topic) == list(range(100))


def test_what_is_acknowledged_without_blocks_is_repeated_by_none(broker: Any, topic: str) -> None:
    """By its member, and by the next one; and the group is not set back."""
    plain: list[int] = []
    turn = 0
    while len(plain) + len(made(broker, topic)) < 100:
        with member(broker, topic) as consumer:
            for _ in range(3):
                turn += 1
                batch = consumer.poll(0.5, most=4)
                if turn % 2:
                    plain += [int(each.body) for each in batch]
                    consumer.commit()
                else:
                    with consumer.exactly_once() as out:
                        for each in batch:
                            out.send(topic + "-out", each.body)
                    assert out.stored
    assert sorted(plain + made(broker, topic)) == list(range(100))
    with GroupAdmin(store=broker.store) as admin:
        queues = [each for each in admin.describe(topic).queues if each.topic == topic]
    assert sum(each.offset for each in queues) == 100


def test_an_operators_reset_takes_back_all_that_is_on_its_way(broker: Any, topic: str) -> None:
    with GroupAdmin(store=broker.store) as admin, member(broker, topic) as consumer:
        seen = was_reset = 0
        while not was_reset or set(made(broker, topic)) != set(range(100)):
            batch = consumer.poll(0.5, most=4)
            with consumer.exactly_once(ahead=4) as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
            seen += len(batch)
            # which queues come first is not said: of each, what is before the reset must be done
            if seen > 50 and not was_reset and set(made(broker, topic)) >= set(range(12)):
                was_reset = 1
                admin.reset(topic, topic, {queue: 3 for queue in range(4)})
    found = Counter(made(broker, topic))
    # what was done before is done once more, and what is before the reset is not
    assert max(found.values()) <= 2
    assert all(found[number] == 1 for number in range(12))


def test_the_asyncio_member_does_the_same(broker: Any, topic: str) -> None:
    async def work() -> None:
        async with AioGroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:
            count = 0
            async for message in consumer:
                async with consumer.exactly_once() as out:
                    out.send(topic + "-out", message.body)
                count += 1
                if count == 20:
                    break
            with pytest.raises(ZeroDivisionError):
                async with consumer.exactly_once() as out:
                    await consumer.poll(5.0)
                    out.send(topic + "-out", b"0")
                    raise ZeroDivisionError
            while len(made(broker, topic)) < 100:
                batch = await consumer.poll(0.5)
                async with consumer.exactly_once(ahead=2) as out:
                    for each in batch:
                        out.send(topic + "-out", each.body)
            await consumer.commit()
            assert out.stored

    asyncio.run(asyncio.wait_for(work(), 60))
    assert made(broker, topic) == list(range(100))


def test_what_cannot_work_is_said_at_once(broker: Any, topic: str) -> None:
    with (
        member(broker, topic, broadcasting=True) as consumer,
        pytest.raises(InvalidArgument, match="keeps its offsets in a file of its own"),
    ):
        consumer.exactly_once()
    with member(broker, topic) as consumer:
        with consumer.exactly_once():
            pass  # nothing was read: nothing is to be done
        no_inputs = pytest.raises(InvalidArgument, match="outputs and no inputs")
        with no_inputs, consumer.exactly_once() as out:
            out.send(topic + "-out", b"0")


def test_a_queue_that_the_program_has_moved_meanwhile_is_in_no_block(
    broker: Any, topic: str
) -> None:
    """Outputs do not say which inputs they are of: so none of the block counts."""
    with member(broker, topic) as consumer:
        batch = consumer.poll(5.0, most=5)
        with consumer.exactly_once() as out:
            for each in batch:
                out.send(topic + "-out", each.body)
            consumer.seek(topic, batch[0].queue_id, 0)
        assert not out.stored and made(broker, topic) == []
        while len(made(broker, topic)) < 100:
            batch = consumer.poll(5.0)
            with consumer.exactly_once() as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
    assert made(broker, topic) == list(range(100))


def blocks_until_all_is_made(broker: Any, topic: str, consumer: GroupConsumer) -> None:
    while len(made(broker, topic)) < 100:
        batch = consumer.poll(0.5)
        with consumer.exactly_once() as out:
            for each in batch:
                out.send(topic + "-out", each.body)
    assert made(broker, topic) == list(range(100))


def joined(threads: Iterable[Thread]) -> None:
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_threads_that_wait_for_the_same_blocks_are_each_told_once(
    broker: Any, topic: str, frozen: Any
) -> None:
    errors: list[BaseException] = []
    begun = [Event() for _ in range(4)]

    with member(broker, topic) as consumer:
        outs, queues = [], set[int]()

        def wait(started: Event) -> None:
            started.set()
            try:
                assert [out.stored for out in outs] == [True] * len(outs)
            except BaseException as error:
                errors.append(error)

        def block() -> int:
            batch = consumer.poll(5.0, most=10)
            with consumer.exactly_once(ahead=99) as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
            outs.append(out)
            queues.update(each.queue_id for each in batch)
            return len(batch)

        count = 0
        while len(queues) < 4:
            count += block()  # the first one of a queue is waited for
        with frozen(broker, "writer"):
            while count < 100:
                count += block()
            threads = [Thread(target=wait, args=(each,)) for each in begun]
            for each in threads:
                each.start()
            assert all(each.wait(60) for each in begun)
        joined(threads)
        assert errors == []
        consumer.commit()
        assert sum(offset for (of, _), offset in consumer.committed.items() if of == topic) == 100
    assert made(broker, topic) == list(range(100))


def test_a_poll_that_is_cancelled_while_blocks_are_on_their_way_takes_none_of_them(
    broker: Any, topic: str, frozen: Any
) -> None:
    async def work() -> None:
        async with AioGroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:

            async def block() -> int:
                batch = await consumer.poll(5.0, most=10)
                async with consumer.exactly_once(ahead=99) as out:
                    for each in batch:
                        out.send(topic + "-out", each.body)
                queues.update(each.queue_id for each in batch)
                return len(batch)

            count, queues = 0, set[int]()
            while len(queues) < 4:
                count += await block()  # the first one of a queue is waited for
            with frozen(broker, "writer"):
                while count < 100:
                    count += await block()
                # nothing is left to hand out: each of them waits for the blocks, all in one thread
                before = active_count()
                for _ in range(4):
                    polling = asyncio.create_task(consumer.poll(None))
                    for _ in range(3):
                        await asyncio.sleep(0)
                    polling.cancel()
                    await asyncio.wait([polling])
                    assert polling.cancelled()
                assert active_count() <= before + 1
            await consumer.commit(None)
            offsets = consumer.committed.items()
            assert sum(offset for (of, _), offset in offsets if of == topic) == 100

    asyncio.run(asyncio.wait_for(work(), 60))
    assert made(broker, topic) == list(range(100))


def test_a_second_ctrl_c_in_a_close_gives_up_the_blocks_that_have_no_outcome(
    broker: Any, topic: str, frozen: Any
) -> None:
    """The first one has it wait for what can be known of them: up to the producer's timeout."""
    consumer, seen = member(broker, topic), set[int]()
    while len(seen) < 4:  # a block of a queue that is not known yet is waited for
        with consumer.exactly_once():
            seen |= {each.queue_id for each in consumer.poll(5.0, most=5)}
    blocks = consumer._blocks
    assert blocks is not None

    def interrupt_twice() -> None:
        while blocks._lock.acquire(blocking=False):  # until the close waits with it
            blocks._lock.release()
            time.sleep(0.01)
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        while blocks.is_busy:
            time.sleep(0.01)
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with frozen(broker, "writer"):
            consumer.poll(5.0, most=5)
            with consumer.exactly_once(ahead=9):
                pass
            (on_way,) = blocks._on_way
            (interrupting := Thread(target=interrupt_twice)).start()
            with pytest.raises(KeyboardInterrupt):
                consumer.close()
            interrupting.join()
            assert consumer.loop.ended
            with pytest.raises(StoreUnavailable, match="closed"):
                on_way.future.result()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_block_inside_of_another_is_refused_and_neither_counts(broker: Any, topic: str) -> None:
    """The inner one would acknowledge what the outer one has read."""
    with member(broker, topic) as consumer:
        consumer.poll(5.0, most=5)
        refused = pytest.raises(InvalidArgument, match="another block of this consumer is open")
        with refused, consumer.exactly_once() as out:
            out.send(topic + "-out", b"0")
            with consumer.exactly_once() as inner:
                inner.send(topic + "-out", b"0")
        assert not out.stored and made(broker, topic) == []
        with pytest.raises(InvalidArgument, match="the block has ended"), out:
            pass  # it would send a second time what it has sent
        blocks_until_all_is_made(broker, topic, consumer)


def test_what_two_threads_have_asked_for_is_in_no_block_and_comes_again(
    broker: Any, topic: str
) -> None:
    """One's block would acknowledge what the other works on."""
    has_polled, may_end = Event(), Event()

    with member(broker, topic) as consumer:

        def work() -> None:
            batch = consumer.poll(60.0, most=5)
            has_polled.set()
            may_end.wait(60)
            with consumer.exactly_once() as out:
                for each in batch:
                    out.send(topic + "-out", each.body)
            assert not out.stored

        other = Thread(target=work)
        other.start()
        assert has_polled.wait(60)
        batch = consumer.poll(60.0, most=5)
        several = pytest.raises(InvalidArgument, match="several threads or tasks")
        with several, consumer.exactly_once() as out:
            for each in batch:
                out.send(topic + "-out", each.body)
        assert made(broker, topic) == []
        may_end.set()
        joined([other])
        blocks_until_all_is_made(broker, topic, consumer)


def test_what_two_tasks_have_asked_for_is_in_no_block(broker: Any, topic: str) -> None:
    """They may be of the same thread: it is not by that that they are told apart."""

    async def work() -> None:
        async with AioGroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:

            async def poll() -> None:
                assert await consumer.poll(60.0, most=5)
                has_polled.set()
                await may_end.wait()

            has_polled, may_end = asyncio.Event(), asyncio.Event()
            other = asyncio.create_task(poll())
            await has_polled.wait()
            batch = await consumer.poll(60.0, most=5)
            with pytest.raises(InvalidArgument, match="several threads or tasks"):
                async with consumer.exactly_once() as out:
                    for each in batch:
                        out.send(topic + "-out", each.body)
            may_end.set()
            await other

    asyncio.run(asyncio.wait_for(work(), 120))
    assert made(broker, topic) == []


def test_threads_that_ask_first_join_as_one_member(broker: Any, topic: str) -> None:
    with member(broker, topic) as consumer, GroupAdmin(store=broker.store) as admin:
        threads = [Thread(target=consumer.poll, args=(0.0,)) for _ in range(8)]
        for each in threads:
            each.start()
        joined(threads)
        while not (members := admin.describe(topic).members):
            pass
        consumer.poll(5.0)
        assert len(members) == len(admin.describe(topic).members) == 1
