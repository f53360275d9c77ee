"""The demo's pipeline: the program of streaming queries, killed half way and started again.

Owns the process and the directory of its checkpoints and files. The queries themselves are in
`penstock.spark.delays`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from penstock.bench.loads.stack import Stack
from penstock.chaos.machine.spark_program import SparkProgram
from penstock.client.reading.consumer import Consumer
from penstock.spark.delays import ALERTS, Result, batches
from penstock.spark.flights import DayRow

# How long a start of Spark and a batch may take on a busy machine.
PATIENCE_S = 240.0
# How many batches must end before the kill: enough to show that it goes on by itself.
BATCHES = 2


class Pipeline:
    """The program and its results."""

    def __init__(self, store: Path, place: Path) -> None:
        self._place = place
        self.kills = 0
        (place / "days").mkdir(parents=True)
        self._program = SparkProgram("penstock.spark.delays", [str(store), str(place)], place)

    def kill_half_way(self) -> None:
        """Kill it after some batches, and start it again. Raises StoreUnavailable."""
        # not earlier, because Spark cannot restart a query that was killed within its first batch
        alerts = self._place / "alerts-checkpoint" / "commits"
        self._wait(lambda: batches(self._place) >= BATCHES and any(alerts.glob("[0-9]*")))
        pid = self._program.pid
        self.stop()
        self.kills += 1
        text = f"half way: killed the streaming queries and their Java (pid {pid}) with SIGKILL"
        click.echo(text, err=True)
        self._program.start()

    def end(self) -> None:
        """Tell it that no more flights come."""
        (self._place / "ended").touch()

    def result(self) -> Result:
        """Its results, once all is read. Raises StoreUnavailable."""
        self._wait(lambda: self._program.has_ended)
        return msgspec.json.decode((self._place / "result.json").read_bytes(), type=Result)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        self._program.wait(is_so, PATIENCE_S, "the streaming queries do not go on")

    def stop(self) -> None:
        """Kill all its processes with SIGKILL."""
        self._program.kill()


@contextmanager
def running_pipeline(store: Path, place: Path) -> Iterator[Pipeline]:
    """Run the pipeline of a store whose broker runs, in a new directory."""
    pipeline = Pipeline(store, place)
    try:
        yield pipeline
    finally:
        pipeline.stop()


def read_alerts(stack: Stack) -> list[DayRow]:
    """What the pipeline has written into the topic, read by a consumer of the broker."""
    with Consumer(stack.consume, ALERTS, follow=False) as consumer:
        return sorted(msgspec.json.decode(each.body, type=DayRow) for each in consumer)
