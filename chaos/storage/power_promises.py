"""Power failures over transactions, groups, and blocks that work exactly once.

A broker runs and is recorded as in power.py, while a program writes down what it is promised. Each
disk that may be left is started and judged:

    transactions   committed once, as decided, or rolled back; none is lost that was promised
    blocks         the outputs are the function of the inputs below the offsets; no block is lost
    groups         no offset beyond what was acknowledged, and none below one that was flushed

On some disks a whole broker is started: whatever is open there must end as its program decided, and
what is not yet copied is copied.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

import msgspec

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.clients.copier import FROM, GROUP, TO, outputs_of
from penstock.chaos.clients.promised import QUEUES, READERS, SELLERS, SOLD
from penstock.chaos.history import SHOWN, read_stored
from penstock.chaos.interposed.recorder import SOURCE, Recorder
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.replay import check_whole, in_memory, reboot, settle
from penstock.chaos.storage.power import KILLED, SETTINGS, ImageName, choose_images, images
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.shared.config import Config
from penstock.shared.config_sources import load_config
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import Record
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.half import op_outcome, parse_op
from penstock.shared.messaging.offsets_record import read_body
from penstock.shared.messaging.system_topics import HALF_TOPIC, OFFSETS_TOPIC, OP_TOPIC
from penstock.shared.progress.group_rows import load_group_rows
from penstock.shared.store.directory import StoreDirectory

# In a recorded run, and in one task; a broker is started on each tenth disk, by its seed.
IMAGES, TASK_IMAGES, LIVE_EVERY = 60, 10, 10
# Open transactions are checked soon, and offsets are saved often.
SOON: dict[str, object] = {
    "transaction_check_interval_ms": 300,
    "transaction_time_out_ms": 100,
    "flush_consumer_offset_interval_ms": 100,
}
# Seconds from a start until all must have ended.
SETTLE_S = 60.0
NOTES = "notes"

Ends = dict[int, int]  # queue -> offset


class Told(msgspec.Struct):
    """What a program's notes say, as of a number of flushes."""

    half: set[str] = msgspec.field(default_factory=set)
    ended: set[str] = msgspec.field(default_factory=set)
    decided: dict[str, str] = msgspec.field(default_factory=dict)
    blocks: Ends = msgspec.field(default_factory=dict)
    acks: Ends = msgspec.field(default_factory=dict)


def read_told(bundle: Path, flushes: int) -> Told:
    """What was told up to that flush, and all decisions: those are no promises of the broker."""
    told = Told()
    for line in (bundle / NOTES).read_text().splitlines():
        what, name, *rest = line.split()
        if what == "decided":
            told.decided[name] = rest[0]
        elif int(rest[-1]) > flushes:
            continue
        elif what in ("half", "ended"):
            (told.half if what == "half" else told.ended).add(name)
        else:
            ends = told.blocks if what == "block" else told.acks
            ends[int(name)] = max(ends.get(int(name), 0), int(rest[0]))
    return told


def promises_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        settings = any_settings(dice) | {"flush_disk_type": "sync"}
        seconds = dice.uniform(1.0, 2.5)
        record_promises(room, arena.library(SOURCE), settings, seconds, dice)
        names = sorted(choose_images(room, IMAGES, dice))
        tasks = [(room, list(some)) for some in batched(names, TASK_IMAGES)]
        for found in arena.check(check_promises, tasks):
            for name, wrong in found:
                again = f"penstock chaos --replay {room} --image {name}"
                arena.report.add_violations(wrong, again)
        arena.report.add_fault("power failure over promises", len(names))


def record_promises(
    place: Path,
    library: Path,
    settings: Mapping[str, object],
    seconds: float,
    dice: random.Random,
) -> None:
    """Run a broker and a program, kill an actor, the program, or all now and then, and end by
    killing all: `place` becomes the bundle."""
    recorder = Recorder(place / "recording", place / "store", library)
    broker = Broker(
        place, {**SETTINGS, **settings, **SOON, **fixed_ports()}, environment=recorder.environment
    )
    program: subprocess.Popen[bytes] | None = None
    try:
        broker.start()
        with Producer(store=broker.store) as producer:
            for topic in (SOLD, FROM, *TO):
                producer.create_topic(topic, QUEUES)
        program = _program(broker, place)
        _await_lines(place, program, 60)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(dice.uniform(0, seconds / 2))  # the kill comes at a random moment
            what = dice.choice((*KILLED, "all", "program", *[""] * len(KILLED)))
            if what == "all":
                broker.kill()
                broker.start()
            elif what == "program":
                _end(program)
                program = _program(broker, place)
            elif what:
                broker.strike(what, SIGKILL)
        broker.kill()
        _end(program)
        broker.forget_memory()
    finally:
        if program is not None:
            _end(program)
        recorder.close()
        broker.clear()


def _program(broker: Broker, place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.chaos.clients.promised"]
    with (place / "said").open("ab") as said:
        return subprocess.Popen(
            [*command, broker.store, place / "recording", place / NOTES], stderr=said
        )


def _end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


def _await_lines(place: Path, program: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until something of each kind was promised: otherwise the run would show nothing."""
    until = time.monotonic() + timeout_s
    wanted = {"half", "ended", "block", "ack"}
    while program.poll() is None and time.monotonic() < until:
        if (place / NOTES).exists():
            lines = (place / NOTES).read_text().splitlines()
            if wanted <= {line.split()[0] for line in lines}:
                return
        time.sleep(0.02)
    raise AssertionError(f"the program was promised nothing: {(place / 'said').read_text()}")


def check_promises(task: tuple[Path, Sequence[ImageName]]) -> list[tuple[ImageName, list[str]]]:
    """The images that break a promise, and how they do. The names are sorted."""
    bundle, names = task
    config = load_config(bundle / "broker.toml").config
    found = []
    # per queue: the readers' group's offset on a disk to which everything earlier was flushed
    floor: Ends = {}
    with tempfile.TemporaryDirectory(prefix="image-of-penstock-", dir=in_memory()) as scratch:
        for name, disk in images(bundle, names):
            root, told = Path(scratch) / "store", read_told(bundle, name.flush)
            disk.write(root)
            reboot(root)
            wrong = judge(root, config, told, floor)
            if name.share == 0:
                floor = {**floor, **_readers(root)}
            if not wrong and name.seed % LIVE_EVERY == 0:
                shutil.rmtree(root)
                disk.write(root)
                reboot(root)
                wrong = go_on(Path(scratch), bundle, told)
            if wrong:
                found.append((name, wrong))
            shutil.rmtree(root)
    return found


def judge(root: Path, config: Config, told: Told, floor: Ends) -> list[str]:
    """What is wrong with a disk, given all that its program was told before. Starts on it."""
    readers = _readers(root)
    wrong = [
        f"the readers' group is at {offset} of queue {queue}, and has acknowledged what is below "
        f"{told.acks.get(queue, 0)}"
        for queue, offset in readers.items()
        if offset > told.acks.get(queue, 0)
    ]
    wrong += [
        f"the readers' group was at {offset} of queue {queue}, on disk, and is at "
        f"{readers.get(queue, 0)}"
        for queue, offset in floor.items()
        if readers.get(queue, 0) < offset
    ]
    try:
        settle(root, config)
        wrong += check_whole(root, config)
        with StoreDirectory(root) as store:
            wrong += wrong_transactions(store, told)
            wrong += wrong_blocks(store, told)
    except PenstockError as error:
        wrong.append(f"the store cannot be started on, or read: {error}")
    return wrong


def _readers(root: Path) -> Ends:
    rows = load_group_rows(StorePaths(root))
    return {queue: at for (group, _, queue), at in rows.items() if group == READERS}


def _records(store: StoreDirectory, topic: str) -> dict[int, list[Record]]:
    """The records of a topic, by queue."""
    return {
        queue.queue_id: [
            store.record_at(queue.log_offset(slot))
            for slot in range(queue.min_offset, queue.max_offset)
        ]
        for queue in store.queues()
        if queue.topic == topic
    }


def wrong_transactions(store: StoreDirectory, told: Told) -> list[str]:
    """Where visible messages, half messages and their marks disagree with what was told."""
    seen = Counter(each.body.decode() for queue in _records(store, SOLD).values() for each in queue)
    halves = [each.body.decode() for each in _records(store, HALF_TOPIC).get(0, [])]
    marked = {
        halves[offset]: op_outcome(mark.properties)
        for mark in _records(store, OP_TOPIC).get(0, [])
        for offset in parse_op(mark.body)
        if offset < len(halves)
    }
    wrong = [f"{key} is seen {count} times" for key, count in seen.items() if count > 1]
    wrong += [f"{key} is seen: {told.decided.get(key)}" for key in seen if not _ok(told, key)]
    wrong += [f"the half message {key} is lost" for key in told.half - set(halves)]
    wrong += [f"{key} has ended, and has no mark" for key in told.ended - marked.keys()]
    wrong += [
        f"{key} was to end with {told.decided.get(key)}, and its mark says {outcome}"
        for key, outcome in marked.items()
        if told.decided.get(key) != outcome
    ]
    lost = {key for key, outcome in marked.items() if outcome == "commit"} - seen.keys()
    return _few(wrong + [f"{key} is marked as committed, and is not seen" for key in lost])


def _ok(told: Told, key: str) -> bool:
    return told.decided.get(key) == "commit"


def wrong_blocks(store: StoreDirectory, told: Told) -> list[str]:
    """Where outputs are not the function of the inputs below the offsets in the log."""
    values: Ends = {}
    for record in _records(store, OFFSETS_TOPIC).get(0, []):
        move = read_body(record.body)
        if move is not None:
            values |= {queue: to for queue, (_, to) in move.topics.get(FROM, {}).items()}
    inputs = _records(store, FROM)
    wanted = Counter(
        output
        for queue, end in values.items()
        for each in inputs.get(queue, [])[:end]
        for output in outputs_of(each.body)
    )
    found = Counter(
        (topic, each.body)
        for topic in TO
        for queue in _records(store, topic).values()
        for each in queue
    )
    wrong = [f"an output is missing: {body.decode()}" for _, body in wanted - found]
    wrong += [
        f"an output is there without its offset: {body.decode()}" for _, body in found - wanted
    ]
    wrong += [
        f"a block up to {end} of queue {queue} is lost: it is at {values.get(queue, 0)}"
        for queue, end in told.blocks.items()
        if values.get(queue, 0) < end
    ]
    return _few(wrong)


def _few(wrong: list[str]) -> list[str]:
    return wrong[:SHOWN] + ([f"and {len(wrong) - SHOWN} more"] if wrong[SHOWN:] else [])


def go_on(place: Path, bundle: Path, told: Told) -> list[str]:
    """Start a broker on a disk, end what is open there, and copy the rest; return what is wrong."""
    settings = msgspec.toml.decode((bundle / "broker.toml").read_bytes())
    broker = Broker(place, {**settings, **fixed_ports()})
    try:
        broker.start()
        halves = len(_stored(broker, HALF_TOPIC))
        wrong = _end_transactions(broker, told) + _copy_the_rest(broker)
        broker.stop()
        with StoreDirectory(broker.store) as store:
            wrong += wrong_blocks(store, told)
            wrong += wrong_transactions(store, told)
            marks = _records(store, OP_TOPIC).get(0, [])
            ended = {offset for mark in marks for offset in parse_op(mark.body)}
            if left := set(range(halves)) - ended:
                wrong.append(f"{len(left)} half messages have no outcome")
        return [f"a broker that goes on there: {each}" for each in wrong]
    except PenstockError as error:
        return [f"a broker cannot go on there: {error}"]
    finally:
        broker.clear()


def _stored(broker: Broker, topic: str) -> list[Record]:
    with StoreDirectory(broker.store) as store:
        return [each for queue in _records(store, topic).values() for each in queue]


def _end_transactions(broker: Broker, told: Told) -> list[str]:
    def on_check(message: object) -> object:
        key = bytes(message.body).decode()  # type: ignore[attr-defined]  # a Message
        return told.decided.setdefault(key, "rollback")

    arguments = {"group": SELLERS, "on_check": on_check}
    with Producer(store=broker.store, **arguments):  # type: ignore[arg-type]  # by name
        until = time.monotonic() + SETTLE_S
        while left := broker.status()["positions"]["transactions_open"]:
            if time.monotonic() > until:
                return [f"{left} transactions are open"]
            time.sleep(0.1)
    return []


def _copy_the_rest(broker: Broker) -> list[str]:
    """Copy exactly once until nothing is left to copy."""
    broker.await_dispatched()
    stored, wrong = read_stored(str(broker.store), FROM)
    ends = {queue: len(bodies) for queue, bodies in stored.items() if bodies}
    until = time.monotonic() + SETTLE_S
    with GroupConsumer(store=broker.store, group=GROUP, topics=FROM, start="first") as consumer:
        while True:
            batch = consumer.poll(0.2)
            with consumer.exactly_once() as out:
                for message in batch:
                    for topic, body in outputs_of(bytes(message.body)):
                        out.send(topic, body)
            if not batch:
                at = {queue: consumer.committed.get((FROM, queue), 0) for queue in ends}
                if all(at[queue] >= end for queue, end in ends.items()):
                    return wrong
                if time.monotonic() > until:
                    return [*wrong, f"the inputs are not all copied: {at} of {ends}"]
