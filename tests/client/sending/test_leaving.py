"""Programs that end with open producers: what was accepted is stored, or is said to be lost, once.

Each program is a process of its own, because what is tested is its end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.client import Consumer

# what every program begins with; it is told its endpoint and its topic
pytestmark = pytest.mark.takes(30)

HEAD = """
import asyncio, atexit, gc, multiprocessing, os, signal, sys, threading, time
from penstock.client import Consumer, MessageQuery, Producer, aio
endpoint, topic, consume = (sys.argv[1:] + [""])[:3]
"""
WAIT_S = 60


class Ended(NamedTuple):
    code: int
    said: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.said.splitlines()


# These programs fork while they have threads, on purpose; Python warns of that from 3.12 on.
QUIET_FORKS = ("-W", "ignore:This process:DeprecationWarning")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program; what it says on stderr, and on stdout."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        code = HEAD + textwrap.dedent(program)
        started.append(
            subprocess.Popen(
                [sys.executable, *QUIET_FORKS, *flags, "-c", code, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Ended]:
    """Run a program to its end."""

    def run(program: str, *arguments: str, flags: tuple[str, ...] = ()) -> Ended:
        began = time.monotonic()
        process = start(program, *arguments, flags=flags)
        _, said = process.communicate(timeout=WAIT_S)
        return Ended(process.returncode, said, time.monotonic() - began)

    return run


def stored(broker: Any, topic: str) -> Counter[bytes]:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        return Counter(message.body for message in consumer)


def expected(count: int) -> Counter[bytes]:
    return Counter({b"%d" % number: 1 for number in range(count)})


SEND_1000 = """
for number in range(1000):
    producer.send(topic, b"%d" % number)
"""
LEFT_OPEN = {
    "by the end of the program": "producer = Producer(endpoint)" + SEND_1000,
    "by sys.exit": "producer = Producer(endpoint)" + SEND_1000 + "sys.exit(0)",
    "by a function that drops it": """
def work():
    producer = Producer(endpoint)
    for number in range(1000):
        producer.send(topic, b"%d" % number)
work()
gc.collect()
""",
    "by a thread that goes on behind the main one": """
producer = Producer(endpoint)
def work():
    threading.main_thread().join()
    for number in range(1000):
        producer.send(topic, b"%d" % number)
    sys.exit(0)
threading.Thread(target=work).start()
""",
    "in a reference cycle": """
class Service:
    def __init__(self):
        self.itself = self
        self.producer = Producer(endpoint)
service = Service()
for number in range(1000):
    service.producer.send(topic, b"%d" % number)
del service
gc.collect()
""",
    "by a process of multiprocessing": """
def work():
    producer = Producer(endpoint)
    for number in range(1000):
        producer.send(topic, b"%d" % number)
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
""",
    "by a thread of a process of multiprocessing": """
def behind(producer, main_is_done):
    main_is_done.wait()
    time.sleep(0.1)
    for number in range(1000):
        producer.send(topic, b"%d" % number)
def work():
    main_is_done = threading.Event()
    threading.Thread(target=behind, args=(Producer(endpoint), main_is_done)).start()
    main_is_done.set()
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
""",
    "by a fork": """
before = Producer(endpoint)
before.send(topic, b"0").result(60)
child = os.fork()
if not child:
    producer = Producer(endpoint)
    for number in range(1, 1000):
        producer.send(topic, b"%d" % number)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "by a coroutine that opened it by hand": """
async def work():
    producer = await aio.Producer(endpoint).__aenter__()
    for number in range(1000):
        producer.send(topic, b"%d" % number)
asyncio.run(work())
""",
    "by an event loop that is closed": """
async def work():
    global producer
    producer = await aio.Producer(endpoint).__aenter__()
    for number in range(1000):
        producer.send(topic, b"%d" % number)
loop = asyncio.new_event_loop()
loop.run_until_complete(work())
loop.close()
""",
    "by an event loop that only stands still": """
async def work():
    global producer
    producer = await aio.Producer(endpoint).__aenter__()
    for number in range(1000):
        producer.send(topic, b"%d" % number)
loop = asyncio.new_event_loop()
loop.run_until_complete(work())
""",
    "by an event loop in a daemon thread": """
async def work():
    global producer
    producer = await aio.Producer(endpoint).__aenter__()
    for number in range(1000):
        producer.send(topic, b"%d" % number)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(work(), loop).result()
""",
    "by a task that is cancelled together with the producer's own": """
async def work(sent):
    async with aio.Producer(endpoint) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
        sent.set()
        await asyncio.sleep(3600)
async def main():
    sent = asyncio.Event()
    task = asyncio.create_task(work(sent))
    await sent.wait()
asyncio.run(main())
""",
}


@pytest.mark.parametrize("how", LEFT_OPEN)
def test_what_is_left_open_sends_what_it_has_accepted(
    broker: Any, run: Callable[..., Ended], how: str
) -> None:
    topic = f"left-{list(LEFT_OPEN).index(how)}"
    ended = run(LEFT_OPEN[how], broker.produce, topic)
    assert (ended.code, ended.said) == (0, "")
    assert stored(broker, topic) == expected(1000)


# --- an error in the block ---

BLOCKS = {
    "sync": """
with Producer(endpoint) as producer:
    for number in range(5000):
        producer.send(topic, b"%d" % number)
    raise ZeroDivisionError("of the block")
""",
    "aio": """
async def main():
    async with aio.Producer(endpoint) as producer:
        for number in range(5000):
            producer.send(topic, b"%d" % number)
        raise ZeroDivisionError("of the block")
asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_an_error_in_the_block_is_raised_and_what_was_accepted_is_sent(
    broker: Any, run: Callable[..., Ended], kind: str
) -> None:
    ended = run(BLOCKS[kind], broker.produce, f"error-{kind}")
    assert ended.code == 1 and ended.lines[-1] == "ZeroDivisionError: of the block"
    assert "penstock.client" not in ended.said.replace("from penstock.client import", "")
    assert stored(broker, f"error-{kind}") == expected(5000)


# --- what cannot be sent ---

GIVEN_UP = {
    "left open": """
producer = Producer(endpoint, timeout_ms=300)
for number in range(1500):
    producer.send(topic + str(number % 2), b"x", keys="k")
producer.send_batch("third", [b"x", b"y"])
""",
    "dropped": """
producer = Producer(endpoint, timeout_ms=300)
for number in range(1500):
    producer.send(topic + str(number % 2), b"x", keys="k")
producer.send_batch("third", [b"x", b"y"])
del producer
while any(thread.name == "penstock-producer" for thread in threading.enumerate()):
    time.sleep(0.01)
""",
    "behind an error": """
try:
    with Producer(endpoint, timeout_ms=300) as producer:
        for number in range(1500):
            producer.send(topic + str(number % 2), b"x", keys="k")
        producer.send_batch("third", [b"x", b"y"])
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
""",
    "aio behind an error": """
async def main():
    async with aio.Producer(endpoint, timeout_ms=300) as producer:
        for number in range(1500):
            producer.send(topic + str(number % 2), b"x", keys="k")
        producer.send_batch("third", [b"x", b"y"])
        raise ZeroDivisionError
try:
    asyncio.run(main())
except ZeroDivisionError:
    pass
""",
    "aio left open": """
async def main():
    producer = await aio.Producer(endpoint, timeout_ms=300).__aenter__()
    for number in range(1500):
        producer.send(topic + str(number % 2), b"x", keys="k")
    producer.send_batch("third", [b"x", b"y"])
asyncio.run(main())
""",
    "aio in a closed loop": """
async def main():
    global producer
    producer = await aio.Producer(endpoint, timeout_ms=300).__aenter__()
    for number in range(1500):
        producer.send(topic + str(number % 2), b"x", keys="k")
    producer.send_batch("third", [b"x", b"y"])
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
""",
}


@pytest.mark.parametrize("how", GIVEN_UP)
def test_what_is_given_up_is_said_in_one_line(
    run: Callable[..., Ended], mute: Any, how: str
) -> None:
    ended = run(GIVEN_UP[how], mute.produce, "lost")
    assert ended.code == 0
    (line,) = ended.lines
    assert "1,502 messages were not acknowledged" in line
    assert "750 of lost0, 750 of lost1, 2 of third" in line
    assert "BROKER_TIMEOUT" in line and "300 ms" in line and mute.produce in line
    assert ended.seconds < 20


RAISED = {
    "sync": """
with Producer(endpoint, timeout_ms=300) as producer:
    for number in range(5):
        producer.send(topic, b"x")
""",
    "aio": """
async def main():
    async with aio.Producer(endpoint, timeout_ms=300) as producer:
        for number in range(5):
            producer.send(topic, b"x")
asyncio.run(main())
""",
}


@pytest.mark.parametrize("kind", RAISED)
def test_a_block_that_ends_well_raises_the_failures_that_nobody_has_asked_for(
    run: Callable[..., Ended], mute: Any, kind: str
) -> None:
    ended = run(RAISED[kind], mute.produce, "lost")
    assert ended.code == 1
    assert ended.said.count("BROKER_TIMEOUT") == 1, "and not one by one"
    assert "BrokerTimeout" in ended.lines[-2]
    assert ended.lines[-1] == "in all, 5 messages were not acknowledged: 5 of lost"


INTERRUPTED = {
    "sync": """
with Producer(endpoint) as producer:
    producer.send(topic, b"x")
    print("sent", flush=True)
    time.sleep(3600)
""",
    "sync, at the end of the program": """
producer = Producer(endpoint)
producer.send(topic, b"x")
print("sent", flush=True)
time.sleep(3600)
""",
    "aio": """
async def main():
    async with aio.Producer(endpoint) as producer:
        producer.send(topic, b"x")
        print("sent", flush=True)
        await asyncio.sleep(3600)
asyncio.run(main())
""",
    "aio, opened by hand": """
async def main():
    producer = await aio.Producer(endpoint).__aenter__()
    producer.send(topic, b"x")
    print("sent", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("how", INTERRUPTED)
def test_a_second_ctrl_c_ends_the_waiting_at_once_and_what_is_given_up_is_said(
    start: Callable[..., subprocess.Popen[str]], mute: Any, how: str
) -> None:
    process = start(INTERRUPTED[how], mute.produce, "lost")
    assert process.stdout is not None and process.stdout.readline() == "sent\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    # the first one is told of, or not, before or after the waiting; the second is not too soon
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert time.monotonic() - began < 20, "the timeout is 30 s"
    assert process.returncode != 0
    (line,) = [line for line in said.splitlines() if "not acknowledged" in line]
    assert "1 message was not acknowledged: 1 of lost" in line
    assert "Exception ignored" not in said and "KeyboardInterrupt" in said


# --- who is closed by nobody says nothing, and holds nobody up ---

QUIET = {
    "a consumer": "consumer = Consumer(consume, topic); consumer.poll(0.01)",
    "a consumer in a cycle": """
class Service: pass
service = Service()
service.itself, service.consumer = service, Consumer(consume, topic)
service.consumer.poll(0.01)
del service
gc.collect()
""",
    "a query": "query = MessageQuery(consume)",
    "a producer": "producer = Producer(endpoint)",
    "an iteration that is not finished": """
def messages():
    with Consumer(consume, topic) as consumer:
        consumer.poll(0.01)
        yield 1
for message in messages():
    break
""",
    "a consumer in a fork": """
consumer = Consumer(consume, topic); consumer.poll(0.01)
child = os.fork()
if not child:
    consumer.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "a producer in a fork": """
with Producer(endpoint) as producer:
    child = os.fork()
    if not child:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
    "an aio consumer": """
async def main():
    consumer = await aio.Consumer(consume, topic).__aenter__()
    await consumer.poll(0.01)
asyncio.run(main())
""",
    "an aio query": """
async def main():
    query = await aio.MessageQuery(consume).__aenter__()
asyncio.run(main())
""",
    "an aio producer": """
async def main():
    producer = await aio.Producer(endpoint).__aenter__()
asyncio.run(main())
""",
}


@pytest.mark.parametrize("what", QUIET)
def test_what_nobody_has_closed_neither_hangs_nor_talks(
    run: Callable[..., Ended], mute: Any, what: str
) -> None:
    ended = run(QUIET[what], mute.produce, "quiet", mute.consume)
    assert (ended.code, ended.said) == (0, "")
    assert ended.seconds < 20


# in a fork ZeroMQ's sockets cannot be closed, and pyzmq says so to whoever has its warnings on
@pytest.mark.parametrize("what", sorted(QUIET.keys() - {"a consumer in a fork"}))
def test_with_warnings_on_only_ours_is_heard(
    run: Callable[..., Ended], mute: Any, what: str
) -> None:
    """One that names what was left open, and none of ZeroMQ's about what is ours inside."""
    ended = run(
        QUIET[what], mute.produce, "quiet", mute.consume, flags=("-W", "always::ResourceWarning")
    )
    assert ended.code == 0
    heard = [line for line in ended.lines if ": ResourceWarning: " in line]
    assert all("unclosed <" in line and "zmq" not in line for line in heard), ended.said
    assert len(heard) <= 1


def test_a_fork_does_not_wait_for_an_outcome_that_nobody_will_bring(
    mute: Any, run: Callable[..., Ended]
) -> None:
    program = """
    from penstock.errors import StoreUnavailable
    with Producer(endpoint, timeout_ms=1000) as producer:
        future = producer.send(topic, b"x")
        child = os.fork()
        if not child:
            try:
                future.result()
            except StoreUnavailable as error:
                os._exit(42 if "fork" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        future.exception()
    """
    ended = run(program, mute.produce, "forked")
    assert (ended.code, ended.said) == (0, "")


def test_a_fork_does_not_wait_for_room_that_nobody_will_make(
    mute: Any, run: Callable[..., Ended]
) -> None:
    program = """
    import asyncio, signal
    from penstock.client import aio
    from penstock.errors import BrokerTimeout, StoreUnavailable
    aio.producer.MAX_WAITING_BYTES = 0
    async def leave():
        async with aio.Producer(endpoint, timeout_ms=1000) as producer:
            future = producer.send(topic, b"x")
            child = os.fork()
            if not child:
                signal.alarm(20)
                try:
                    asyncio.run(producer.drain())
                except StoreUnavailable as error:
                    os._exit(42 if "fork" in str(error) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
            try:
                await future
            except BrokerTimeout:
                pass
    asyncio.run(leave())
    """
    ended = run(program, mute.produce, "forked")
    assert (ended.code, ended.said) == (0, "")
