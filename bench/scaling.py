"""Writes docs/scaling.md: what a million messages take, where one machine ends, and clusters.

    python -m penstock.bench.scaling docs

It computes everything from docs/performance.json, the size of a record, and the machines of the
table below, which are assumed. Run it after `make bench-peers`; a test compares page and figures.
"""

from __future__ import annotations

import json
import sys
import textwrap
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from penstock.shared.config import Config
from penstock.shared.formats.index_layout import ITEM
from penstock.shared.formats.properties import UNIQ_KEY, encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import CQ_ENTRY_BYTES

SIZES = 100, 1024
SIDES = "broker", "client"
DAY_S, HOUR_S, MILLION = 86_400, 3_600, 1_000_000
RATES = 1_000_000, 10_000_000
CLUSTERS = 10, 100


class Size(NamedTuple):
    """A machine as clouds sell it: assumed, and not measured."""

    name: str
    processors: int
    disk_mb_per_s: int
    network_gbit_per_s: float


MACHINES = (
    Size("small", 2, 125, 1),
    Size("middle", 8, 500, 10),
    Size("large", 32, 2_000, 25),
)


class Load(NamedTuple):
    """Medians of Penstock's runs with bodies of one size."""

    size: int
    sent_per_s: float
    read_per_s: float
    # CPU seconds for a million messages, of (broker, client): sent, and read
    send_cpu_s: tuple[float, float]
    read_cpu_s: tuple[float, float]

    @property
    def record_bytes(self) -> int:
        key = encode_properties({UNIQ_KEY: "0" * 32})
        return len(encode_record(Record("orders", bytes(self.size), key)))

    @property
    def disk_bytes(self) -> int:
        return self.record_bytes + CQ_ENTRY_BYTES + ITEM.size


def load_of(found: dict[str, Any], size: int) -> Load:
    """Figures for this size: sent durably, and read by socket, as from another machine."""

    def medians(name: str, kind: str, ack: str) -> tuple[float, float, float]:
        runs = [
            (each["messages_per_s"], *(each["cpu_s_per_million"][side] for side in SIDES))
            for each in found["rows"]
            if (each["name"], each["kind"], each["ack"], each["size"]) == (name, kind, ack, size)
        ]
        rate, broker, client = map(median, zip(*runs, strict=True))
        return rate, broker, client

    sent, *send_cpu = medians("Penstock", "packed", "durable")
    read, *read_cpu = medians("Penstock, by the socket", "consume", "written")
    return Load(size, sent, read, (send_cpu[0], send_cpu[1]), (read_cpu[0], read_cpu[1]))


def ends(load: Load, machine: Size) -> dict[str, float]:
    """Messages a second at which each part of a machine reaches its limit."""
    return {
        "broker": load.sent_per_s,
        "disk": machine.disk_mb_per_s * 1e6 / load.disk_bytes,
        "network": machine.network_gbit_per_s * 1e9 / 8 / load.record_bytes,
    }


def page(found: dict[str, Any]) -> str:
    loads = [load_of(found, size) for size in SIZES]
    processors = found["machines"]["durable"][0]["cpus"]
    head = (
        "What a million messages take, where one machine ends, and what clusters would take. All "
        "of it is computed by `python -m penstock.bench.scaling docs` from the medians in "
        "[performance.json](performance.json), which [performance.md](performance.md) explains: "
        f"broker and clients were on one machine of {processors} processors, with no network "
        "between them. The text says where something is assumed."
    )
    parts = [_text(head), *_million(loads), *_machines(loads), *_clusters(loads[-1])]
    return "\n\n".join(["# Scaling", *parts]) + "\n"


def _text(paragraph: str) -> str:
    return textwrap.fill(paragraph, 100, break_on_hyphens=False, break_long_words=False)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """The first column names what a row is about; the others have numbers."""
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _million(loads: list[Load]) -> list[str]:
    heads = ["body", "sent, CPU s: broker", "client", "read, CPU s: broker", "client"]
    heads += ["processor-hours of the broker", "MB on disk", "MB over the network, each way"]
    rows = []
    for each in loads:
        cpu = *each.send_cpu_s, *each.read_cpu_s
        hours = (each.send_cpu_s[0] + each.read_cpu_s[0]) / HOUR_S
        sizes = (each.disk_bytes * MILLION / 1e6, each.record_bytes * MILLION / 1e6)
        rows.append(
            [f"{each.size}", *(f"{one:.2f}" for one in cpu), f"{hours:.5f}"]
            + [f"{size:,.0f}" for size in sizes]
        )
    one = loads[-1]
    how = (
        "The messages were sent durably, one `send` each, and read once through the socket. With a "
        f"body of {one.size} bytes, the topic `orders` and a UNIQ_KEY, a record has "
        f"{one.record_bytes} bytes. Its entry in a queue has {CQ_ENTRY_BYTES}, its item in the "
        f"index {ITEM.size}: {one.record_bytes} + {CQ_ENTRY_BYTES} + {ITEM.size} = "
        f"{one.disk_bytes} bytes. The broker takes ({one.send_cpu_s[0]:.2f} + "
        f"{one.read_cpu_s[0]:.2f}) s / {HOUR_S:,} s processor-hours. Multiplied by what an hour of "
        "a processor costs you, that is the price without the disk."
    )
    return ["## A million messages", _table(heads, rows), _text(how)]


def _machines(loads: list[Load]) -> list[str]:
    heads = ["machine", "processors", "disk, MB/s", "network, Gbit/s", "body"]
    heads += ["broker, messages/s", "disk", "network", "ends at", "by", "log kept, TB"]
    hours, rows = Config().file_reserved_time_h, []
    for machine in MACHINES:
        for load in loads:
            limits = ends(load, machine)
            by = min(limits, key=lambda name: limits[name])
            kept_tb = limits[by] * load.disk_bytes * hours * HOUR_S / 1e12
            sizes = f"{machine.disk_mb_per_s:,}", f"{machine.network_gbit_per_s:g}", f"{load.size}"
            rates = (f"{limit:,.0f}" for limit in (*limits.values(), limits[by]))
            rows.append(
                [machine.name, f"{machine.processors}", *sizes, *rates, by, f"{kept_tb:.1f}"]
            )
    assumed = (
        "The sizes are assumed: clouds sell such machines. Yours may differ: then calculate with "
        "your own. A broker has one writer, so more processors are not assumed to make it faster "
        "than it was measured, which is the column `broker`. They are for clients, the gateway and "
        "Spark."
    )
    small, load = MACHINES[0], loads[-1]
    busy = load.sent_per_s * load.send_cpu_s[0] / MILLION
    how = (
        f"Disk: {small.disk_mb_per_s} MB/s / {load.disk_bytes} bytes = "
        f"{ends(load, small)['disk']:,.0f} messages/s. Network: {small.network_gbit_per_s:g} "
        f"Gbit/s / 8 / {load.record_bytes} bytes = {ends(load, small)['network']:,.0f} messages/s "
        "in, and as many out: enough for one reader of everything, or half that rate for two. The "
        f"log is kept for {hours} hours (`file_reserved_time_h`) at the rate of `ends at`. At "
        f"{load.sent_per_s:,.0f} messages/s the broker keeps {load.sent_per_s:,.0f} x "
        f"{load.send_cpu_s[0]:.2f} s / {MILLION:,} = {busy:.2f} processors busy."
    )
    return ["## Where one machine ends", _text(assumed), _table(heads, rows), _text(how)]


def _clusters(load: Load) -> list[str]:
    assumed = (
        "Brokers share nothing on a message's way: each has queues of its own, clients choose "
        "among them, and a name server only says where they are. So a cluster is assumed to have "
        f"the sum of its brokers' rates; that has not been measured. With bodies of {load.size} "
        "bytes, and with each message read once:"
    )
    cpu_s = load.send_cpu_s[0] + load.read_cpu_s[0]
    heads = ["machine", "brokers", "messages/s", "thousand million a day", "TB a day"]
    heads += ["processors busy"]
    rows = []
    for machine in MACHINES:
        for count in CLUSTERS:
            rate = min(ends(load, machine).values()) * count
            made = rate, rate * DAY_S / 1e9, rate * DAY_S * load.disk_bytes / 1e12
            busy = f"{rate * cpu_s / MILLION:,.1f}"
            rows.append([machine.name, f"{count}", *(f"{one:,.0f}" for one in made), busy])
    other = (
        "The other way round, this is how many machines a rate takes. A slave for each broker "
        "doubles their number, and doubles what leaves a master, so its network ends at half:"
    )
    names = [f"{each.name}{with_}" for each in MACHINES for with_ in ("", ", slaves")]
    wanted = [[f"{rate:,}", *_machines_for(rate, load)] for rate in RATES]
    tables = _table(heads, rows), _table(["messages/s", *names], wanted)
    return ["## Clusters", _text(assumed), tables[0], _text(other), tables[1]]


def _machines_for(rate: int, load: Load) -> list[str]:
    cells = []
    for machine in MACHINES:
        alone = ends(load, machine)
        with_slave = alone | {"network": alone["network"] / 2}
        cells.append(ceil(rate / min(alone.values())))
        cells.append(2 * ceil(rate / min(with_slave.values())))
    return [f"{cell:,}" for cell in cells]


def main() -> None:
    docs = Path(sys.argv[1])
    found = json.loads((docs / "performance.json").read_bytes())
    (docs / "scaling.md").write_text(page(found), "utf-8")


if __name__ == "__main__":
    main()
