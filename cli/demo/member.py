"""A member of the demo's group, a process of its own: `python -m penstock.cli.demo.member STORE`.

It reads flights, and writes its results exactly once. So if it is killed at any moment, what it has
written counts, and the other member does the rest. It runs until it is killed.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable

import msgspec

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.message import GroupMessage

GROUP, TOPIC, SEEN = "demo", "flights", "flights-seen"
# The inputs of a block, which costs a flush however many it has.
MOST = 2000


class Figures(msgspec.Struct, array_like=True):
    """Sums over some flights of one carrier; delays are in minutes."""

    flights: int = 0
    departure_delays: int = 0
    departures: int = 0
    arrival_delays: int = 0
    arrivals: int = 0
    cancelled: int = 0

    def add(self, more: Figures) -> None:
        """Add the sums over other flights of the carrier."""
        self.flights += more.flights
        self.departure_delays += more.departure_delays
        self.departures += more.departures
        self.arrival_delays += more.arrival_delays
        self.arrivals += more.arrivals
        self.cancelled += more.cancelled


class Seen(msgspec.Struct, array_like=True):
    """A block's output: the sums by carrier, and (plane, CRC-32 of the body) for each flight."""

    figures: dict[str, Figures]
    flights: list[tuple[str | None, int]]


class _Flight(msgspec.Struct):
    dep_time: int | None
    dep_delay: int | None
    arr_delay: int | None


_flight = msgspec.json.Decoder(_Flight)


def seen(messages: Iterable[GroupMessage]) -> Seen:
    """The output for some flights, in their order."""
    found = Seen({}, [])
    for message in messages:
        body = message.body
        flight = _flight.decode(body)
        figures = found.figures.setdefault(message.tags or "", Figures())
        figures.flights += 1
        if flight.dep_delay is not None:
            figures.departures += 1
            figures.departure_delays += flight.dep_delay
        if flight.arr_delay is not None:
            figures.arrivals += 1
            figures.arrival_delays += flight.arr_delay
        figures.cancelled += flight.dep_time is None
        found.flights.append((message.keys, zlib.crc32(body)))
    return found


def main(store: str) -> None:
    """Read, sum up and write, for ever."""
    with GroupConsumer(store=store, group=GROUP, topics=TOPIC, start="first") as consumer:
        while True:
            batch = consumer.poll(1.0, most=MOST)
            with consumer.exactly_once() as out:
                if batch:
                    out.send(SEEN, msgspec.msgpack.encode(seen(batch)))


if __name__ == "__main__":
    main(sys.argv[1])
