#!/usr/bin/env python3
"""Lay out the files of an image: an environment, its Python, what these load, and nothing else.

    packaging/rootfs.py /opt/penstock /rootfs

An image of a distribution with Python is larger than 120 MB before anything is installed, and each
program in it is one more that somebody must keep without holes. A broker opens none of them: here
are no shell, no package manager and no compiler. It prints how large all of it is.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

# What no broker opens: tests, editors, installers, headers, sources of what is compiled.
NOT_FOLDERS = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data"),
    *("pip", "pip-*.dist-info", "setuptools", "setuptools-*.dist-info", "_distutils_hack"),
    *("pkg_resources", "distutils", "venv", "sqlite3", "xmlrpc", "wsgiref"),
    *("include", "__pycache__", "config-*", "f2py"),
)
NOT_FILES = (
    *("*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.a", "_test*.so", "pip*"),
    *("activate*", "Activate*", "distutils-precedence.pth"),
    *("numpy-config", "pygmentize", "markdown-it"),
)
# Of the standard library, with the libraries that only they load.
NOT_MODULES = ("_tkinter*", "_dbm*", "_gdbm*", "_curses*", "_sqlite3*", "readline*", "turtle.py")
# Of the environment's packages: no source in any language is shown in colour, nothing is drawn.
NOT_PACKAGES = ("pygments/lexers/[!_]*", "numpy/random", "numpy/polynomial", "numpy/testing")
# Whoever made their wheels has moved parts of these files; they do not load without symbols.
WITH_SYMBOLS = ("/numpy/", "/numpy.libs/", "/pyzmq.libs/")
UID = 1000
HOME = "var/lib/penstock"
FILES = {
    "etc/passwd": f"root:x:0:0::/:\npenstock:x:{UID}:{UID}::/{HOME}:\n",
    "etc/group": f"root:x:0:\npenstock:x:{UID}:\n",
}
ELF = b"\x7fELF"
LOADED = re.compile(r"(/\S+) \(0x")


def lay_out(environment: Path, root: Path) -> None:
    """Fill `root`, a new directory, as root. Raises OSError, CalledProcessError."""
    library = Path(_asked(environment, "import os; print(os.path.dirname(os.__file__))"))
    packages = Path(_asked(environment, "import click; print(click.__path__[0])")).parent
    python = Path(os.path.realpath(environment / "bin" / "python"))
    _copy_folder(library, root, (*NOT_FOLDERS, *NOT_FILES, *NOT_MODULES, "site-packages"))
    _copy_folder(environment, root, (*NOT_FOLDERS, *NOT_FILES))
    for file in (*_links(environment / "bin" / "python", python), python):
        _copy(file, root, follow_symlinks=False)
    for pattern in NOT_PACKAGES:
        for unwanted in _in(root, packages).glob(pattern):
            shutil.rmtree(unwanted) if unwanted.is_dir() else unwanted.unlink()
    _add_libraries(root)
    for file in _elf_files(root):
        if not any(each in str(file) for each in WITH_SYMBOLS):
            subprocess.run(["strip", "--strip-unneeded", file], check=True)
    _compile(library, root, legacy=True)
    for source in _in(root, library).rglob("*.py"):
        source.unlink()  # of the standard library the compiled form is enough: 11 MB less
    _compile(packages, root, legacy=False)
    for name, text in FILES.items():
        _in(root, Path("/", name)).write_text(text)
    (root / HOME).mkdir(parents=True)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def _in(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _asked(environment: Path, program: str) -> str:
    command = [environment / "bin" / "python", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _copy_folder(folder: Path, root: Path, without: tuple[str, ...]) -> None:
    ignored = shutil.ignore_patterns(*without)
    shutil.copytree(folder, _in(root, folder), symlinks=True, ignore=ignored, dirs_exist_ok=True)


def _copy(file: Path, root: Path, follow_symlinks: bool) -> None:
    """To the same place, where it is not there yet."""
    there = _in(root, file)
    there.parent.mkdir(parents=True, exist_ok=True)
    if not there.is_symlink() and not there.exists():
        shutil.copy2(file, there, follow_symlinks=follow_symlinks)


def _links(link: Path, end: Path) -> Iterator[Path]:
    """Each link on the way to `end`."""
    while link.is_symlink() and link != end:
        yield link
        link = Path(os.path.normpath(link.parent / link.readlink()))


def _elf_files(root: Path) -> Iterator[Path]:
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                if opened.read(len(ELF)) == ELF:
                    yield file


def _add_libraries(root: Path) -> None:
    """What the ELF files there load of this machine, under the names that they ask for."""
    wanted: set[Path] = set()
    for file in _elf_files(root):
        # from where it came: a library beside it is found by its place
        source = Path("/") / file.relative_to(root)
        told = subprocess.run(["ldd", source], capture_output=True, text=True, check=True).stdout
        wanted |= {Path(each) for each in LOADED.findall(told)}
    wanted = {each for each in wanted if not _in(root, each).exists()}
    for library in wanted:
        _copy(library, root, follow_symlinks=True)
    # the loader looks in few folders by itself, and Python's is not among them
    folders = sorted({str(each.parent) for each in wanted})
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc" / "ld.so.conf").write_text("\n".join(folders) + "\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)


def _compile(folder: Path, root: Path, legacy: bool) -> None:
    """Whoever runs in the image can write nothing beside the sources, and nobody changes these."""
    compileall.compile_dir(
        _in(root, folder),
        stripdir=str(root),
        prependdir="/",
        quiet=1,
        legacy=legacy,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    environment, root = (Path(each).absolute() for each in sys.argv[1:])
    root.mkdir()
    lay_out(environment, root)
    size = sum(each.lstat().st_size for each in root.rglob("*") if not each.is_dir())
    print(f"{root}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
