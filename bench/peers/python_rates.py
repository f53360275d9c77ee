"""How fast Python programs send and read with Penstock's client and those of other brokers.

    python -m penstock.bench.peers.python_rates
    python -m penstock.bench.peers.python_rates --clients penstock,redis --sizes 100 --runs 1

One `send` for each message, acknowledged as `written`, then the backlog read to its end again and
again. Brokers take turns; the ratios are of medians, Penstock's to the others'.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import msgspec

from penstock.bench.loads.load import Receive, Seen, Send
from penstock.bench.loads.load_process import load_command, measured, started
from penstock.bench.peers.brokers.peer import WRITTEN, Server
from penstock.bench.peers.paced import markdown
from penstock.bench.peers.python.python_load import Order
from penstock.bench.peers.python.python_peers import CLIENTS, OURS, named, say, served
from penstock.shared.errors import PenstockError

WARM_S = 0.5
# what is read is sent before, and this is not measured
BACKLOG = 64 * 1000

# client, body bytes, whether it reads -> messages a second in each run
Rates = dict[tuple[str, int, bool], list[float]]


def command(client: str, server: Server, order: Order) -> list[str]:
    if not order.reads:
        CLIENTS[client].make_topic(server, order.topic)
    if client != OURS:
        load = [sys.executable, "-m", "penstock.bench.peers.python.python_load", client]
        return [*load, msgspec.json.encode(order).decode()]
    if order.reads:
        read = Receive(
            order.endpoint, order.topic, order.messages, order.seconds, body_bytes=order.size
        )
        return load_command(read)
    send = Send(
        server.told["produce"], [order.topic], order.size, WRITTEN, order.in_flight,
        order.seconds, order.warm_s, order.messages,
    )  # fmt: skip
    return load_command(send)


def _run(client: str, server: Server, order: Order) -> Seen:
    with started([command(client, server, order)]) as processes:
        (seen,) = measured(processes, order.seconds, lambda done, total: None)
    return seen


def once(client: str, server: Server, size: int, seconds: float, run: int, found: Rates) -> None:
    """Have one client send at full rate, and then read a backlog of its own."""
    endpoint = server.told["consume"] if client == OURS else server.told["endpoint"]
    order = Order(endpoint, f"rate-{client}-{size}-{run}", size, seconds, warm_s=WARM_S)
    seen = _run(client, server, order)
    found.setdefault((client, size, False), []).append(seen.messages / seen.seconds)
    topic = f"backlog-{client}-{size}-{run}"
    # Penstock's client sends the backlog as its warm-up; the others send it in the measured part.
    backlog = msgspec.structs.replace(
        order, topic=topic, seconds=0, messages=BACKLOG, warm_s=WARM_S if client == OURS else 0
    )
    sent = _run(client, server, backlog)
    reads = msgspec.structs.replace(
        order, topic=topic, reads=True, messages=sent.messages + sent.warm_messages
    )
    seen = _run(client, server, reads)
    found.setdefault((client, size, True), []).append(seen.messages / seen.seconds)


def rows(found: Rates) -> list[list[object]]:
    table: list[list[object]] = []
    for (client, size, reads), rates in found.items():
        ours = found.get((OURS, size, reads))
        ratio = round(median(ours) / median(rates), 2) if ours else "–"
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        kind = "read" if reads else "send"
        table.append([kind, size, client, f"{median(rates):,.0f}", spread, ratio])
    return sorted(table, key=lambda row: (str(row[0]), int(str(row[1]))))


HEADS = "what", "body", "client", "messages/s", "lowest to highest", "Penstock to it"


def _measure(
    clients: Sequence[str], sizes: Sequence[int], seconds: float, runs: int, place: Path
) -> Rates:
    found: Rates = {}
    with served(clients, CLIENTS, place, WRITTEN) as servers:
        for run in range(runs):
            for size in sizes:
                for client, server in servers.items():
                    try:
                        once(client, server, size, seconds, run, found)
                    except PenstockError as error:
                        say(f"{client}, {size} bytes: {error}")
                    else:
                        sent, read = (found[client, size, reads][-1] for reads in (False, True))
                        say(f"{client}, {size} bytes: {sent:,.0f}/s sent, {read:,.0f}/s read")
    return found


@click.command()
@click.option("--clients", default=",".join(CLIENTS), callback=named(CLIENTS), show_default=True)
@click.option("--sizes", default="100,1024", show_default=True, help="Of bodies, in bytes.")
@click.option("--seconds", type=click.FloatRange(min=0.2), default=1.5, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
def main(clients: list[str], sizes: str, seconds: float, runs: int) -> None:
    """Measure Python clients at full rate."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    of_bodies = [int(size) for size in sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
        found = _measure(clients, of_bodies, seconds, runs, Path(place))
    print(f"{seconds:g} s a run, {runs} runs, load average {os.getloadavg()[0]:.1f}\n")
    print(markdown(HEADS, rows(found)))


if __name__ == "__main__":
    main()
