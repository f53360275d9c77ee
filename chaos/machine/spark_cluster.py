"""A Spark standalone cluster of processes of this machine: a master and workers, to be killed.

Workers alternate between two names of the loopback: a slow task is tried a second time only on a
host with another name.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from penstock.shared.errors import StoreUnavailable
from penstock.spark.home import home_of_links, is_installed
from penstock.spark.java import java_home

STARTED_S = 120.0
HOSTS = "127.0.0.1", "localhost"
# options of virtual machines that live for a minute
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# of an application's executors
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(QUICK_START),
}
_DEPLOY = "org.apache.spark.deploy"


def _home() -> Path:
    """Spark's home as in a local session: its modules are compiled, while each Python worker would
    compile those of an archive again."""
    import pyspark  # the extra

    installed = Path(pyspark.__file__).parent
    return home_of_links(installed) if is_installed(installed) else installed


class Cluster:
    """One master and its workers, each with one core and its own directory."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self, workers: int) -> None:
        entry = f"{_DEPLOY}.master.Master"
        self._launch("master", entry, HOSTS[0], "--port", "0", "--webui-port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            self._launch_worker(number)
        for number in range(workers):
            self._await_worker(number)

    def start_worker(self, number: int) -> None:
        """Start another worker; no other one has had its number."""
        self._launch_worker(number)
        self._await_worker(number)

    def _launch_worker(self, number: int) -> None:
        name = f"worker-{number}"
        self._launch(
            name,
            f"{_DEPLOY}.worker.Worker",
            HOSTS[number % len(HOSTS)],
            *("--cores", "1", "--memory", "700m", "--webui-port", "0"),
            *("--work-dir", str(self._place / name), self.url),
        )

    def _await_worker(self, number: int) -> None:
        self._said(f"worker-{number}", r"(Successfully registered) with master")

    def _launch(self, name: str, entry: str, host: str, *arguments: str) -> None:
        place = self._place / name
        place.mkdir(parents=True)
        with (place / "said").open("wb") as said:
            self._processes[name] = subprocess.Popen(
                [str(java_home() / "bin" / "java"), "-Xmx256m", *QUICK_START]
                + ["-cp", _classes(), f"-Djava.io.tmpdir={place}", entry]
                + ["--host", host, *arguments],
                stdout=said,
                stderr=said,
                env=os.environ | _environment(),
            )

    def _said(self, name: str, pattern: str) -> str:
        """What the process has written that matches, once it has."""
        until = time.monotonic() + STARTED_S
        while True:
            text = (self._place / name / "said").read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            if time.monotonic() > until or self._processes[name].poll() is not None:
                raise StoreUnavailable(f"Spark's {name} does not come up", text[-2000:])
            time.sleep(0.05)

    def kill_worker(self, number: int) -> None:
        """kill -9 of a worker with its executors and their Python processes."""
        process = psutil.Process(self._processes[f"worker-{number}"].pid)
        for each in [*process.children(recursive=True), process]:
            each.kill()

    def stop(self) -> None:
        for launched in reversed(self._processes.values()):
            if launched.poll() is None:
                for each in psutil.Process(launched.pid).children(recursive=True):
                    each.kill()
                launched.kill()
            launched.wait()


def _classes() -> str:
    """In the order of Spark's own scripts, so that an archive of classes fits all its machines."""
    (logging,) = (_home() / "jars").glob("slf4j-api-*.jar")
    return f"{_home()}/conf:{logging}:{_home()}/jars/*"


def _environment() -> dict[str, str]:
    """What Spark's own start scripts would set, so that workers can start executors."""
    core = next((_home() / "jars").glob("spark-core_*.jar"))
    scala = core.name.removeprefix("spark-core_").partition("-")[0]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(_home()),
        "SPARK_SCALA_VERSION": scala,
        "JAVA_HOME": str(java_home()),
    }


@contextmanager
def running_cluster(place: Path, workers: int = 2) -> Iterator[Cluster]:
    cluster = Cluster(place)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
