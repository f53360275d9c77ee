"""The wheel, not the checkout: what is in it, and whether a broker runs from it alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_PRODUCT = (".*", "build", "dist", "tests", "docs", "*.egg-info", "__pycache__")


def _has_setuptools_80() -> bool:
    try:
        return int(version("setuptools").partition(".")[0]) >= 80
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: building leaves things beside the sources."""
    place = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(*NOT_PRODUCT)
    shutil.copytree(ROOT, place / "source", symlinks=True, ignore=ignored)
    isolation = ["--no-build-isolation"] if _has_setuptools_80() else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    subprocess.run([*command, "--wheel-dir", place, place / "source"], check=True)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """An environment in which `penstock` is the unpacked wheel; the sources are not found."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONUNBUFFERED": "1"}


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    links = [entry for entry in (source / "src" / "penstock").iterdir() if entry.is_symlink()]
    packages = [link.name for link in links if link.is_dir()]
    expected = {"penstock/__init__.py", "penstock/py.typed", "penstock/supervisor.py"}
    expected.add("pyspark_penstock.py")
    suffixes = {"configs": {".toml"}, "chaos": {".py", ".c"}}
    for package in packages:
        expected |= {
            f"penstock/{path.relative_to(source)}"
            for path in (source / package).rglob("*")
            if path.suffix in suffixes.get(package, {".py"})
        }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        (points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "penstock = penstock.cli.main:main" in archive.read(points).decode()
    assert found == expected


def test_a_broker_runs_from_the_wheel_alone(installed: dict[str, str], tmp_path: Path) -> None:
    def penstock(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=installed
        )

    where = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    from_wheel = subprocess.run(
        where, capture_output=True, text=True, cwd=tmp_path, env=installed, check=True
    )
    assert from_wheel.stdout.startswith(str(tmp_path / "site"))

    configuration = tmp_path / "site" / "penstock" / "configs" / "dev.toml"
    broker = penstock("up", "--config", str(configuration), "--store", "store")
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready produce=tcp://")
        listed, _ = penstock("topics", "ls", "--store", "store").communicate(timeout=30)
        assert listed.split() == ["topic", "queues"]
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=30)
    assert broker.returncode == 0
