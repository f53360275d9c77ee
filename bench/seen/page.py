"""What the monitor's page costs: how long its users wait, and how much of a core it takes.

The broker has thousands of topics, each with a group that has read half of it. Pages are requested
as the browser does it. If Chromium is installed, it reports itself when it first painted something.
It then stays open as a user whose cost is measured: while nothing happens, and while messages come,
at a rate and as fast as one producer can.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.loads.accounts import ran
from penstock.bench.loads.load import Send
from penstock.bench.loads.load_process import Moved, load_command, started
from penstock.bench.loads.stack import Stack, running_stack
from penstock.bench.log.idle import SETTLE_S
from penstock.bench.seen.browser import Browser
from penstock.client.sending.producer import Producer
from penstock.shared.clock import SystemClock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import read_run
from penstock.shared.store.topics import Topics, save_topics

QUEUES, MESSAGES = 4, 8
# Messages come at these rates, to this many topics, during a measurement; 0 is full rate.
RATES_PER_S, LOADED, BODY_BYTES, IN_FLIGHT = (1000, 0), 10, 1000, 256
_UNTIL_IT_IS_ENDED_S = 86_400
ANSWER_S, QUEUES_S = 60, 600
ON = {"monitor_enable": "true", "monitor_port": "0"}
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


class Row(msgspec.Struct, frozen=True, tag="page", tag_field="kind"):
    """Milliseconds of a request or a paint, or the monitor's percent of one core. `asked` is the
    limit below which it must stay."""

    what: str
    unit: str
    asked: float
    runs: int
    p50: float
    max: float


def bench_page(topics: int, runs: int, seconds: float, moved: Moved) -> list[Row]:
    """As many groups as topics. Raises StoreUnavailable if the page is not served."""
    place = Path(tempfile.mkdtemp(prefix="penstock-page-"))
    try:
        _fill(place / "store", topics, lambda done: moved(done, 2 * topics))
        flags = {**ON, "max_queues": str(topics * QUEUES)}
        with running_stack(place / "store", flags=flags) as stack:
            rows = _asked(stack.endpoints["monitor"], topics, runs)
            rows += _costs(stack, topics, "when nobody looks", 1, seconds)
            moved(3 * topics // 2, 2 * topics)
            if (program := shutil.which("chromium")) is not None:
                rows += _seen(program, place / "chromium", stack, topics, runs, seconds)
            moved(2 * topics, 2 * topics)
    finally:
        shutil.rmtree(place)
    return rows


def _fill(root: Path, topics: int, made: Callable[[int], None]) -> None:
    """Make topics with messages, and for each a group that has read half of them."""
    names = [f"topic-{number:05}" for number in range(topics)]
    kept, now_ms = Topics(), SystemClock().now_ms()
    for name in names:  # made in the store before the start: a running broker makes few a second
        kept.put(name, QUEUES, now_ms)
    paths = StorePaths(root)
    paths.topics.parent.mkdir(parents=True)
    save_topics(paths.topics, kept)
    flags = {"max_queues": str(topics * QUEUES)}
    with running_stack(root, flags=flags) as stack, Producer(stack.produce) as producer:
        for number, name in enumerate(names):
            for each in range(MESSAGES):
                producer.send(name, b"x" * 100, queue=each % QUEUES)
            made(number)
        producer.flush(ANSWER_S)
        _await_queues(stack)
    half = dict.fromkeys(map(str, range(QUEUES)), MESSAGES // QUEUES // 2)
    offsets = {f"{name}@{name.replace('topic', 'group')}": half for name in names}
    paths.consumer_offsets.write_text(json.dumps({"offsetTable": offsets}))


def _await_queues(stack: Stack) -> None:
    """Wait for thousands of files, which take longer than a stopping broker is given."""
    positions = _positions(stack)
    until_s = time.monotonic() + QUEUES_S
    while positions["dispatched"] < positions["wrote"] and time.monotonic() < until_s:
        time.sleep(0.05)
    positions.close()


def _positions(stack: Stack) -> Positions:
    run = read_run(StorePaths(stack.store))
    if run is None:
        raise StoreUnavailable("the broker of this measurement has ended", stack.store)
    return Positions(run.positions)


def _asked(monitor: str, topics: int, runs: int) -> list[Row]:
    """Requests for pages of all topics and groups, in several orders, and for one of each."""
    last = topics - 1
    ways = {
        "the page itself": "/",
        "the overview": "/api/overview",
        "topics, first page": "/api/topics",
        "topics, last page": f"/api/topics?page={last // 50 + 1}",
        "topics by search": f"/api/topics?search={last:05}",
        "groups by lag": "/api/groups?order=lag",
        "groups, last page": f"/api/groups?page={last // 50 + 1}",
        "a group": f"/api/group?name=group-{last:05}",
        "/metrics": "/metrics",
    }
    took: dict[str, list[float]] = {what: [] for what in ways}
    for _ in range(runs):
        for what, path in ways.items():
            began = time.perf_counter()
            with urllib.request.urlopen(monitor + path, timeout=ANSWER_S) as answer:
                answer.read()
            took[what].append(time.perf_counter() - began)
    return [_row(what, "ms", 300, [each * 1000 for each in all_s]) for what, all_s in took.items()]


def _row(what: str, unit: str, asked: float, found: list[float]) -> Row:
    return Row(what, unit, asked, len(found), round(median(found), 2), round(max(found), 2))


def _costs(stack: Stack, topics: int, what: str, asked: float, seconds: float) -> Iterator[Row]:
    """The costs while nothing happens, and while messages come."""
    yield _cost(stack, what, asked, seconds)
    for rate_per_s in RATES_PER_S:
        loaded = [f"topic-{number:05}" for number in range(min(LOADED, topics))]
        load = Send(
            *(stack.produce, loaded, BODY_BYTES),
            *("durable", IN_FLIGHT, _UNTIL_IT_IS_ENDED_S),
            rate_per_s=rate_per_s,
        )
        with started([load_command(load)]) as (process,):
            process.go()
            told = f"{rate_per_s:,} messages/s" if rate_per_s else "all the messages it takes"
            yield _cost(stack, f"{what}, {told}", asked, seconds)


def _cost(stack: Stack, what: str, asked: float, seconds: float) -> Row:
    """The monitor's cost over this time."""
    positions = _positions(stack)
    pid = positions.life("monitor").pid
    positions.close()
    time.sleep(SETTLE_S)  # earlier work is done by then
    before, began = ran(pid), time.monotonic()
    time.sleep(seconds)  # the measured time
    percent = (ran(pid).ns - before.ns) / (time.monotonic() - began) / 1e7
    return _row(what, "% of a core", asked, [percent])


def _seen(
    program: str, place: Path, stack: Stack, topics: int, runs: int, seconds: float
) -> list[Row]:
    monitor, painted, rows = stack.endpoints["monitor"], list[float](), list[Row]()
    with closing(Browser(program, place)) as browser:
        for _ in range(runs):
            browser.open(monitor)
            painted.append(float(browser.until(_PAINTED)))
        rows.append(_row("first paint in Chromium", "ms", 300, painted))
        for view in ("topics", "groups?order=lag"):
            browser.open(f"{monitor}/#/{view}")
            browser.until("document.getElementById('state')?.className === 'good'")
            rows.append(_cost(stack, f"while #/{view} is looked at", 3, seconds))
        browser.open(f"{monitor}/#/")
        browser.until("document.querySelector('svg.pipeline')")
        rows += _costs(stack, topics, "while #/ is looked at", 3, seconds)
    return rows
