"""The peers' clients in Java: fetched by Maven, compiled with javac, started as load processes.

Each peer has its libraries and its classes in a folder of its own below target/, because they do
not work together on one class path.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.bench.peers.brokers.peer import Load, Read
from penstock.shared.errors import MissingDependency

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "java" / "penstock" / "peers"
TARGET = HERE / "target"
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.0:copy-dependencies"
MAVEN_TIMEOUT_S = 600
ALL_HAVE = ("Talk", "Load", "Peer", "Read", "Reader", "Touched", "Pace", "Pacer", "Samples")
CLIENT_FLAGS = ("-Xms512m", "-Xmx512m")


class Java:
    """One peer's libraries and classes; `profile` is its profile in pom.xml.

    <peer>Peer.java sends and <peer>Reader.java reads; some have <peer>Pacer.java, in `also`.
    """

    def __init__(
        self, profile: str, peer: str, also: Sequence[Path] = (), roots: Sequence[Path] = ()
    ) -> None:
        self._profile, self._peer = profile, peer
        names = (*ALL_HAVE, f"{peer}Peer", f"{peer}Reader")
        self._sources = [SOURCES / f"{name}.java" for name in names]
        self._sources += also
        self._roots = roots
        self._library = TARGET / profile / "lib"
        self._classes = TARGET / profile / "classes"
        self.class_path = f"{self._classes}:{self._library}/*"

    def build(self) -> None:
        """Fetch and compile what is missing. Raises MissingDependency."""
        fetched = fetch(self._profile)
        built = TARGET / self._profile / "built"
        if _older(built, [*self._sources, fetched]):
            _require("javac")
            shutil.rmtree(self._classes, ignore_errors=True)
            roots = ["-sourcepath", ":".join(map(str, self._roots))] if self._roots else []
            files = [str(source) for source in self._sources]
            flags = ["-nowarn", "-d", str(self._classes), "-cp", self.class_path, *roots]
            _run(["javac", *flags, *files], "the driver compiles")
            built.touch()

    def library_version(self, name: str) -> str:
        """The version in the name of a library's file."""
        (found,) = self._library.glob(f"{name}-[0-9]*.jar")
        return found.stem.removeprefix(f"{name}-")

    def command(self, load: Load | Read, told: Mapping[str, str]) -> list[str]:
        driver, kind = ("Load", "Peer") if isinstance(load, Load) else ("Read", "Reader")
        if isinstance(load, Load) and load.rate_per_s:
            driver, kind = "Pace", "Pacer"
        order = {name: getattr(load, name) for name in load.__struct_fields__} | dict(told)
        words = [f"{name}={value}" for name, value in order.items()]
        main = ["-cp", self.class_path, f"penstock.peers.{driver}", f"{self._peer}{kind}"]
        return ["java", *CLIENT_FLAGS, *main, *words]


def fetch(profile: str) -> Path:
    """Have Maven bring a profile's libraries to its `lib`; returns a file that was made then.

    Raises MissingDependency.
    """
    fetched = TARGET / profile / "fetched"
    if _older(fetched, [HERE / "pom.xml"]):
        _require("mvn")
        library = TARGET / profile / "lib"
        shutil.rmtree(library, ignore_errors=True)
        copy = [GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={library}"]
        pom = ["-f", str(HERE / "pom.xml"), f"-P{profile}"]
        _run(["mvn", "-q", "-B", *pom, *copy], "Maven did not fetch what the driver needs")
        fetched.touch()
    return fetched


def libraries(profile: str) -> list[Path]:
    """The libraries of a profile, fetched if they are missing. Raises MissingDependency."""
    return sorted((fetch(profile).parent / "lib").glob("*.jar"))


def _require(tool: str) -> None:
    if shutil.which(tool) is None:
        raise MissingDependency(
            f"{tool} is not installed", None, "apt-get install maven openjdk-17-jdk-headless"
        )


def _older(made: Path, sources: Sequence[Path]) -> bool:
    if not made.exists():
        return True
    return any(source.stat().st_mtime > made.stat().st_mtime for source in sources)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-500:]
        raise MissingDependency(what, said)
