"""The table: each load on each broker, by medians, and its rate compared with RocketMQ's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from penstock.bench.peers.brokers.gateway import Real
from penstock.bench.peers.table import Row

HEADS = (
    *("the client", "body", "broker", "runs", "messages/s", "to RocketMQ"),
    *("broker CPU us", "client CPU us"),
)
_SIDES = ("broker", "client")


def rows(found: Sequence[Row]) -> Iterator[list[object]]:
    """A line for each load on each broker: medians, and the rate compared with RocketMQ's."""
    loads: dict[tuple[int, str], dict[str, list[Row]]] = {}
    for row in found:
        broker, _, way = row.name.partition(", ")
        loads.setdefault((row.size, way), {}).setdefault(broker, []).append(row)
    for (size, way), brokers in loads.items():
        rates = {name: median(each.messages_per_s for each in of) for name, of in brokers.items()}
        for name, of in brokers.items():
            if why := next((each.why for each in of if each.why), ""):
                yield [way, size, name, 0, why, "–", "–", "–"]
                continue
            beside = rates.get(Real.name, 0)
            cpu = (median(each.cpu_s_per_million[side] for each in of) for side in _SIDES)
            ratio = round(rates[name] / beside, 2) if beside else "–"
            shown = f"{rates[name]:,.0f}", ratio, *(round(each, 1) for each in cpu)
            yield [way, size, name, len(of), *shown]
