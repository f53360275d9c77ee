"""The drivers in Java, without a broker: they count, check and speak as bench/loads/load.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.bench.loads.load import Seen
from penstock.bench.loads.load_process import measured, started
from penstock.bench.peers.brokers.java import ALL_HAVE, SOURCES
from penstock.shared.errors import StoreUnavailable

pytestmark = pytest.mark.skipif(not shutil.which("javac"), reason="needs a Java compiler")

# a broker that is a number: it stores what it is sent, and has what its order says to be read
PEER = """\
package penstock.peers;

import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

final class CountPeer implements Peer {
    private final AtomicLong stored = new AtomicLong();
    private final int batch;

    CountPeer(Map<String, String> order) {
        batch = Integer.parseInt(order.get("batch"));
    }

    @Override
    public void send(Done done) {
        stored.addAndGet(batch);
        done.done(null);
    }

    @Override
    public void sendAndWait() {
        stored.incrementAndGet();
    }

    @Override
    public long stored(long expected) {
        return stored.get();
    }

    @Override
    public void close() {
    }
}

final class CountReader implements Reader {
    private final int has;
    private final byte[] body;

    CountReader(Map<String, String> order) {
        has = Integer.parseInt(order.get("has"));
        body = Load.body(order);
        body[body.length - 1] += Integer.parseInt(order.get("damage"));
    }

    @Override
    public void read(long messages, Touched touched) {
        for (int number = 0; number < has; number++) {
            touched.body(body);
        }
    }

    @Override
    public void close() {
    }
}
"""

# what it is sent it has read, twice; its order's `lost` first ones it does not take
PACER = """\
package penstock.peers;

import java.util.Map;

final class CountPacer implements Pacer {
    private final long lost;
    private long stored;
    private Heard heard;

    CountPacer(Map<String, String> order) {
        lost = Long.parseLong(order.get("lost"));
    }

    @Override
    public void hear(Heard told) {
        heard = told;
    }

    @Override
    public void send(long dueNs, Peer.Done done) {
        done.done(stored++ < lost ? new IllegalStateException("it is lost") : null);
        heard.heard(dueNs);
        heard.heard(dueNs);
    }

    @Override
    public long stored(long expected) {
        return stored;
    }

    @Override
    public void close() {
    }
}
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("drivers")
    (place / "CountPeer.java").write_text(PEER)
    sources = [SOURCES / f"{name}.java" for name in ALL_HAVE]
    (place / "CountPacer.java").write_text(PACER)
    counting = [str(place / f"Count{kind}.java") for kind in ("Peer", "Pacer")]
    command = ["javac", "-d", str(place), *map(str, sources), *counting]
    subprocess.run(command, check=True, timeout=500)
    return place


def _seen(classes: Path, driver: str, made: str, seconds: float, **order: object) -> Seen:
    words = [f"{name}={value}" for name, value in (order | {"seconds": seconds}).items()]
    command = ["java", "-cp", str(classes), f"penstock.peers.{driver}", made, *words]
    with started([command]) as processes:
        (seen,) = measured(processes, seconds, lambda done, total: None)
    return seen


@pytest.mark.parametrize(("batch", "threads"), [(1, 0), (64, 0), (1, 512)])
def test_what_is_sent_is_counted_with_and_without_threads(
    classes: Path, batch: int, threads: int
) -> None:
    order = {"batch": batch, "threads": threads, "in_flight": 512, "warm_s": 0.1, "messages": 0}
    seen = _seen(classes, "Load", "CountPeer", 0.3, **order)
    assert seen.messages > 0 < seen.warm_messages
    assert seen.stored == seen.messages + seen.warm_messages
    assert seen.stored % batch == 0 and 0.3 <= seen.seconds < 5
    assert 0 < len(seen.latencies_ms) <= 4096


def test_a_backlog_is_exactly_as_large_as_was_asked(classes: Path) -> None:
    order = {"batch": 64, "threads": 0, "in_flight": 512, "warm_s": 0, "messages": 6400}
    seen = _seen(classes, "Load", "CountPeer", 0, **order)
    assert (seen.stored, seen.warm_messages, seen.messages) == (6400, 6400, 0)


def test_a_backlog_is_read_again_and_again(classes: Path) -> None:
    order = {"has": 700, "messages": 700, "size": 100, "damage": 0, "warm_s": 0}
    seen = _seen(classes, "Read", "CountReader", 0.2, **order)
    assert seen.messages > 700 and seen.messages % 700 == 0


@pytest.mark.parametrize(
    ("has", "damage", "said"),
    [(699, 0, "read 699 messages of 700"), (700, 1, "come to 140000 and not 139300")],
)
def test_a_backlog_with_other_messages_fails(
    classes: Path, has: int, damage: int, said: str
) -> None:
    order = {"has": has, "messages": 700, "size": 100, "damage": damage, "warm_s": 0}
    with pytest.raises(StoreUnavailable, match=said):
        _seen(classes, "Read", "CountReader", 0, **order)


def test_what_is_sent_at_a_pace_is_sent_when_it_is_due_and_none_is_left_out(classes: Path) -> None:
    order = {"rate_per_s": 500, "warm_s": 0.1, "lost": 0}
    seen = _seen(classes, "Pace", "CountPacer", 0.4, **order)
    assert (seen.messages, seen.warm_messages, seen.stored) == (200, 50, 250)
    assert len(seen.latencies_ms) == 200 and min(seen.latencies_ms) >= 0
    assert seen.seconds >= 0.398


def test_a_message_at_a_pace_that_is_lost_fails_the_load(classes: Path) -> None:
    with pytest.raises(StoreUnavailable, match="it is lost"):
        _seen(classes, "Pace", "CountPacer", 0.1, rate_per_s=100, warm_s=0.1, lost=1)
