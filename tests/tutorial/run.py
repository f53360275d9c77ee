"""The tutorial with a stopwatch: from an empty environment, each command as it is printed.

    python tests/tutorial/run.py            or: make tutorial
    python tests/tutorial/run.py WHEEL      downloads nothing: as `make test` does

The wheel is built from this checkout and installed with its dependencies as step 1 says; that time
is told and does not count, for it is mostly a download. With a WHEEL that one is installed, and its
dependencies come from the environment that runs this. What a command prints is compared with what
the page shows, where `...` stands for anything. Exits with 1 at the first difference, or after ten
minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MOST_S = 600
# A store of a real broker, for the step that looks at one.
ROCKETMQ_STORE = ROOT / "tests" / "golden" / "clean-5.3.tar.xz"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)


class Step(NamedTuple):
    """A command, and the lines that it prints; or a file to write."""

    command: str
    lines: list[str]
    file: str = ""


def steps(page: str) -> Iterator[Step]:
    """In the order of the page."""
    command = ""
    for language, title, text in _BLOCK.findall(page):
        if title:
            yield Step(text, [], title)
        elif language == "sh":
            if command:
                yield Step(command, [])
            command = text.strip()
        elif command:
            yield Step(command, text.splitlines())
            command = ""
    if command:
        yield Step(command, [])


def is_shown(line: str, printed: list[str]) -> bool:
    """Whether a line of the page is among those that were printed."""
    pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
    return any(pattern.fullmatch(each) for each in printed)


def main(wheel: str = "") -> int:
    with tempfile.TemporaryDirectory(prefix="tutorial-") as place:
        return _run(Path(place), wheel)


def _run(place: Path, given: str) -> int:
    environment = _prepared(place, with_pip=not given)
    install = f"pip install '{given or _built(place)}[arrow]' pytest"
    if given:
        # a folder that another one names is searched, and what is named in it is not
        (packages,) = (place / "venv" / "lib").glob("python3*/site-packages")
        (packages / "installed.pth").write_text(sysconfig.get_path("purelib"))
        pip = f"{sys.executable} -m pip --python venv/bin/python"
        install = f"{pip} install --no-index --no-deps {given}"
    whole_s = 0.0
    for step in steps((ROOT / "docs" / "tutorial.md").read_text()):
        if step.file:
            (place / step.file).write_text(step.command)
            continue
        installs = step.command.startswith("pip install")
        command = install if installs else step.command
        began_s = time.monotonic()
        done = subprocess.run(
            ["sh", "-c", command], cwd=place, env=environment, capture_output=True, text=True
        )
        took_s = time.monotonic() - began_s
        whole_s += 0 if installs else took_s
        print(f"{took_s:7.2f} s  {step.command}", flush=True)
        missing = [each for each in step.lines if not is_shown(each, done.stdout.splitlines())]
        if done.returncode or missing:
            print(f"exit code {done.returncode}; not printed: {missing}")
            print(done.stdout, done.stderr, sep="\n")
            subprocess.run(
                ["sh", "-c", "penstock down --store ./first"], cwd=place, env=environment
            )
            return 1
    print(f"{whole_s:7.2f} s  altogether, without the installation")
    return int(whole_s > MOST_S)


def _built(place: Path) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(ROOT)]
    subprocess.run([*build, "--wheel-dir", str(place)], check=True)
    (wheel,) = place.glob("*.whl")
    return wheel


def _prepared(place: Path, with_pip: bool) -> dict[str, str]:
    """An environment that is empty but for a home with a store of RocketMQ."""
    venv.create(place / "venv", with_pip=with_pip)
    with tarfile.open(ROCKETMQ_STORE) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (found,) = (place / "unpacked").rglob("commitlog")
    (place / "home").mkdir()
    found.parent.rename(place / "home" / "store")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {
        **kept,
        "HOME": str(place / "home"),
        "PATH": f"{place / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        **any_ports(),
    }


def any_ports() -> dict[str, str]:
    """What lets `penstock up` run beside other brokers: any free ports in place of its own."""
    keys = re.findall(r"^(\w+_port) = ", (ROOT / "configs" / "broker.toml").read_text(), re.M)
    return {f"PENSTOCK_BROKER_{key.upper()}": "0" for key in keys}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
