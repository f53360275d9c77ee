"""RocketMQ's own clients in a process of their own, and what they have seen so far.

Their program is that of the interop tests with a real RocketMQ (tests/interop/rocketmq), so they
run only in a checkout, with Java, once Maven has fetched them. This file does no harm.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import MissingDependency, StoreUnavailable

PROGRAMS = Path(__file__).resolve().parents[2] / "tests" / "interop" / "rocketmq"
RUN = PROGRAMS / "run.sh"
# the consumers' group has the topic's name
TOPIC = GROUP = "crew"
# Time from an answer until the producer sends again.
GAP_MS = 20
ACKED, FAILED, GOT = "acked", "failed", "got"
_RESTING = "resting"


class Seen(NamedTuple):
    """What a client has seen of a message: its answer, or the message. Both times are monotonic."""

    what: str
    client: str
    body: str
    sent_ns: int
    at_ns: int


def missing() -> tuple[str, str]:
    """What RocketMQ's clients lack here, and how to get it; empty if they can be run."""
    if not RUN.exists():
        return "a checkout of Penstock", "git clone it, and there: make setup"
    if shutil.which("java") is None:
        return "Java", "apt-get install openjdk-17-jdk-headless maven"
    if not (PROGRAMS / "target" / "built").exists():
        return "RocketMQ's clients", f"{RUN} --build"
    return "", ""


class Crew:
    """`producers` that send all the time, and `consumers` of one group."""

    def __init__(self, name_server: str, place: Path, producers: int, consumers: int) -> None:
        """`name_server` is HOST:PORT, `place` a directory for what they write."""
        self.clients = {f"producer-{n}": ACKED for n in range(producers)}
        self.clients |= {f"consumer-{n}": GOT for n in range(consumers)}
        self._seen, self._said = place / "seen", place / "said"
        self._read, self.is_resting = 0, False
        command = [str(RUN), "penstock.interop.Crew", name_server, TOPIC]
        command += [str(producers), str(consumers), str(GAP_MS)]
        with self._seen.open("ab") as seen, self._said.open("ab") as said:
            # a process group of its own: if a source is new, the script compiles it first
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=seen, stderr=said, start_new_session=True
            )

    def look(self) -> list[Seen]:
        """What they have seen since the last look. Raises StoreUnavailable if they have ended."""
        if self._process.poll() is not None:
            raise StoreUnavailable(
                "RocketMQ's clients have ended", self._process.returncode, self.said()
            )
        with self._seen.open("rb") as file:
            file.seek(self._read)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for line in whole.decode().splitlines():
            if line == _RESTING:
                self.is_resting = True
                continue
            what, client, body, sent, at = line.split(" ")
            found.append(Seen(what, client, body, int(sent), int(at)))
        return found

    def rest(self) -> None:
        """Let the producers end; a later look sets `is_resting`."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"rest\n")
        self._process.stdin.flush()

    def said(self) -> str:
        return self._said.read_text()[-2000:]

    def end(self) -> None:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@contextmanager
def crew(name_server: str, place: Path, *, producers: int, consumers: int) -> Iterator[Crew]:
    """Running clients, of which nothing is left afterwards. Raises MissingDependency."""
    what, hint = missing()
    if what:
        raise MissingDependency("RocketMQ's clients cannot be run here", f"without {what}", hint)
    running = Crew(name_server, place, producers, consumers)
    try:
        yield running
    finally:
        running.end()
