"""The fixtures, as the tests of an application use them: in a pytest of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.takes(45)

WAIT_S = 120
FIXTURES = """
def test_a_message_comes_back(producer, topic, consumer):
    producer.send(topic, b"order 1").result()
    assert [bytes(message.body) for message in consumer.poll(60.0)] == [b"order 1"]

def test_stores_are_apart(penstock, topic, producer):
    assert penstock.topics() == {topic: 4}
    producer.send(topic, b"1", keys="k").result()
    assert [each.body for each in penstock.query().by_key(topic, "k")] == [b"1"]

def test_the_application_finds_the_broker_of_its_test(penstock, topic):
    from penstock import connect
    with connect() as broker:
        assert broker.topics() == {topic: 4}

def test_an_actor_is_killed(kill_actor, producer, topic):
    producer.send(topic, b"1").result()
    kill_actor("writer")
    producer.send(topic, b"2").result()
"""
FAILS = """
def test_fails(penstock, kill_actor):
    kill_actor("reader")
    assert not penstock.store
"""
SETTINGS = """
import pytest

@pytest.fixture
def penstock_settings():
    return {"max_queues": 7}

def test_settings(penstock):
    from penstock.errors import PenstockError
    with penstock.producer() as producer, pytest.raises(PenstockError, match="7"):
        producer.create_topic("wide", 8)
"""
KILLED = """
import os
import signal

import pytest

@pytest.mark.parametrize("number", range(100))
def test_it(penstock, topic, producer, number):
    producer.send(topic, b"%d" % number).result(120)
    found = penstock.status()
    pids = [penstock.pid, *(actor["pid"] for actor in found["actors"] if actor["pid"])]
    with open(f"broker-{number}", "w") as file:
        file.write(f"{penstock.store.parent}\\n{found['run_directory']}\\n")
        file.writelines(f"{pid}\\n" for pid in pids)
    if number == 50:
        os.kill(os.getpid(), signal.SIGKILL)
"""


DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


def _pytest(place: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (place / "test_them.py").write_text(source)
    (place / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(place)]
    return subprocess.run(command, capture_output=True, text=True, timeout=850, cwd=place)


def test_the_fixtures_serve_a_test_with_a_broker_of_its_own(tmp_path: Path) -> None:
    ran = _pytest(tmp_path, FIXTURES + SETTINGS, "-q")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


def test_the_tests_in_the_document_pass(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"^```python\n# test_billing.py\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S
    )
    ran = _pytest(tmp_path, block, "-q")
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.timeout(900)
def test_a_hundred_at_once_leave_nothing_and_a_killed_worker_neither(tmp_path: Path) -> None:
    """Each has sent a message to a broker of its own; one is killed with its worker."""
    done = _pytest(tmp_path, KILLED, "-n", "4")
    assert "1 failed, 99 passed" in done.stdout and "crashed while running" in done.stdout, done
    brokers = [file.read_text().split() for file in tmp_path.glob("broker-*")]
    assert len(brokers) == 100 and all(len(pids) > 10 for _, _, *pids in brokers)
    assert len({store for store, *_ in brokers}) == len({run for _, run, *_ in brokers}) == 100
    deadline = time.monotonic() + WAIT_S
    for store, run, *pids in brokers:
        while Path(store).exists() or Path(run).exists() or any(map(_lives, pids)):
            assert time.monotonic() < deadline, (store, run, pids)
            time.sleep(0.05)


def _lives(pid: str) -> bool:
    """A dead process may have nobody who asks how it has ended."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_failed_test_shows_what_its_broker_said(tmp_path: Path) -> None:
    ran = _pytest(tmp_path, FAILS)
    assert ran.returncode == 1
    shown = ran.stdout.partition("Penstock broker")[2]
    assert re.search(r"supervisor: reader \(pid \d+\) was killed by SIGKILL", shown)


def test_pytest_starts_no_slower_for_the_plugin(tmp_path: Path) -> None:
    source = "import sys\ndef test_it():\n    assert 'zmq' not in sys.modules\n"
    source += (
        "    assert not [name for name in sys.modules if name.startswith('penstock.client')]\n"
    )
    assert _pytest(tmp_path, source).returncode == 0


def test_each_fixture_says_what_it_is(tmp_path: Path) -> None:
    listed = _pytest(tmp_path, "", "--fixtures").stdout
    for fixture in ("penstock", "topic", "producer", "consumer", "kill_actor"):
        assert re.search(rf"^{fixture} -- .*\n    \w+", listed, re.M), fixture
