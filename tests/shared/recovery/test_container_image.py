"""A store that lies in a container's image: a real broker, on a real overlay file system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.chaos.broker import SETTINGS, Broker, running
from penstock.client.reading.consumer import Consumer
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer
from penstock.shared.files.mounts import is_overlay

pytestmark = [
    pytest.mark.takes(10),
    pytest.mark.skipif(os.geteuid() != 0, reason="for want of root, who may mount"),
]

IN_IMAGE, MORE = 200, 50


def _send(broker: Broker, topic: str, numbers: range) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic(topic, 1)
        for number in numbers:
            producer.send(topic, b"%d" % number, keys=f"key-{number}")
    broker.await_dispatched()


def _read(broker: Broker, topic: str, *, direct: bool) -> list[int]:
    with Consumer(broker.consume, topic, follow=False, direct=direct) as consumer:
        return [int(bytes(message.body)) for message in consumer]


def _by_key(broker: Broker, topic: str, number: int) -> list[int]:
    with closing(MessageQuery(broker.consume)) as query:
        return [int(bytes(each.body)) for each in query.by_key(topic, f"key-{number}")]


def _penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a broker's store is that was stopped and put into an image."""
    with running(tmp_path / "image", SETTINGS) as filled:
        for topic in ("orders", "others"):
            _send(filled, topic, range(IN_IMAGE))
        filled.stop()
        for each in ("layer", "work", "container/store"):
            (tmp_path / each).mkdir(parents=True)
        layers = f"upperdir={tmp_path / 'layer'},workdir={tmp_path / 'work'}"
        line = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={filled.store},{layers}"]
        store = tmp_path / "container" / "store"
        done = subprocess.run([*line, store], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"overlays cannot be mounted here: {done.stderr.strip()}")
        try:
            yield store.parent
        finally:
            # at once: this process may still map files of it
            subprocess.run(["umount", "--lazy", store], check=True)


def test_the_file_system_is_known(place: Path) -> None:
    assert is_overlay(place / "store") and is_overlay(place / "store" / "commitlog")
    assert not is_overlay(place) and not is_overlay(Path("/proc"))


def test_what_is_stored_after_the_messages_of_the_image_is_read(place: Path) -> None:
    with running(place, SETTINGS) as broker:
        assert _by_key(broker, "orders", 0) == [0]
        for direct in (True, False):  # each maps the files of the image, if it may
            assert _read(broker, "orders", direct=direct) == [*range(IN_IMAGE)]
        for first in (IN_IMAGE, IN_IMAGE + MORE):
            _send(broker, "orders", range(first, first + MORE))
            for direct in (True, False):
                assert _read(broker, "orders", direct=direct) == [*range(first + MORE)]
            assert _by_key(broker, "orders", first) == [first]
            broker.stop()
            assert _penstock("store", "verify", broker.store).returncode == 0
            broker.start()


def test_a_topic_of_the_image_is_deleted_and_the_others_go_on(place: Path) -> None:
    with running(place, SETTINGS) as broker:
        deleted = _penstock("topics", "rm", "orders", "--apply", "--store", broker.store)
        assert deleted.returncode == 0, deleted.stderr
        _send(broker, "others", range(IN_IMAGE, IN_IMAGE + MORE))
        _send(broker, "orders", range(MORE))
        for _ in range(2):
            assert _read(broker, "orders", direct=False) == [*range(MORE)]
            assert _read(broker, "others", direct=False) == [*range(IN_IMAGE + MORE)]
            broker.stop()
            assert not [*(broker.store / "consumequeue" / "orders" / "1").glob("*")]
            broker.start()
        assert "made again" not in broker.output()


def test_a_topic_that_was_deleted_when_the_broker_died_is_gone_after_the_next_start(
    place: Path,
) -> None:
    with running(place, SETTINGS) as broker:
        os.kill(broker.actors()["reput"], signal.SIGSTOP)  # it puts queues aside
        deleting = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "topics", "rm", "orders", "--apply"]
            + ["--store", str(broker.store)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        topics = broker.store / "config" / "topics.json"
        while '"orders"' in topics.read_text():
            time.sleep(0.01)
        broker.kill()
        deleting.kill()
        deleting.wait()
        broker.start()
        _send(broker, "orders", range(MORE))
        assert _read(broker, "orders", direct=False) == [*range(MORE)]
        assert _read(broker, "others", direct=False) == [*range(IN_IMAGE)]


def test_a_rebuild_says_that_a_copy_is_to_be_changed(place: Path) -> None:
    found = _penstock("store", "rebuild", place / "store")
    assert found.returncode == 1 and "image cannot be renamed; change a copy" in found.stderr
    assert _penstock("store", "verify", place / "store").returncode == 0
