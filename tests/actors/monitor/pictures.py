"""The screenshots of docs/: a real broker, and groups that read or lag. `make screenshots`."""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from penstock.bench.seen.browser import Browser
from penstock.client import GroupConsumer, Producer
from penstock.embedded import Broker

ROOT = Path(__file__).parents[3]
SECONDS = 90  # that are drawn
MOST_BYTES = 150_000
WAIT_S = 120
# name, view, what it shows, width, height, dark
PICTURES = (
    ("monitor", "", "Actors", 1280, 1060, False),
    ("monitor-groups-dark", "groups?order=lag", "shipping", 1280, 560, True),
    ("monitor-message", "message?topic=orders&key=order-17", "Properties", 1280, 860, False),
    ("monitor-narrow", "", "Actors", 360, 860, True),
)


def _send(broker: Broker, over: threading.Event) -> None:
    number = 0
    with Producer(store=broker.store) as producer:
        while not over.wait(0.1):
            for _ in range(round(40 + 25 * math.sin(time.monotonic() / 7))):
                number += 1
                order = {"id": number, "customer": number * 37 % 500, "total": number * 113 % 200}
                producer.send("orders", json.dumps(order).encode(), keys=f"order-{number}")
            producer.flush(WAIT_S)


def _handle(broker: Broker, group: str, pause_s: float, over: threading.Event) -> None:
    with GroupConsumer(store=broker.store, group=group, topics="orders", start="first") as consumer:
        while not over.wait(pause_s):
            for message in consumer.poll(0.5):
                message.ack()


def _browser(place: Path) -> Browser:
    return Browser(shutil.which("chromium") or sys.exit("apt-get install chromium"), place)


def _take(browser: Browser, monitor: str) -> None:
    browser.command("Emulation.setScrollbarsHidden", hidden=True)
    for name, view, shown, width, height, dark in PICTURES:
        browser.look(width, dark=dark, height=height)
        browser.open(f"{monitor}/#/{view}")
        browser.until(f"document.getElementById('main')?.innerText.includes({shown!r})")
        browser.until("document.getElementById('state')?.className === 'good'")
        file = ROOT / "docs" / f"{name}.png"
        browser.screenshot(file, whole=False)
        assert file.stat().st_size < MOST_BYTES, file
        print(f"{file.stat().st_size:8,} {file}")


def _broker(place: str) -> Broker:
    return Broker(Path(place, "shop"), settings={"monitor_enable": True})


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as place, _broker(place) as broker:
        over = threading.Event()
        work = [threading.Thread(target=_send, args=(broker, over))]
        for group, pause_s in (("billing", 0.02), ("fraud", 0.2), ("shipping", 3)):
            at = (broker, group, pause_s, over)
            work.append(threading.Thread(target=_handle, args=at))
        for each in work:
            each.start()
        try:
            time.sleep(SECONDS)
            with closing(_browser(Path(place) / "chromium")) as browser:
                _take(browser, broker.endpoints["monitor"])
        finally:
            over.set()
            for each in work:
                each.join()


if __name__ == "__main__":
    main()
