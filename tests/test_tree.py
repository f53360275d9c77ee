"""The source tree is tested too: who may import whom, sizes, names, and what is banned."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.shared.faults import POINTS

ROOT = Path(__file__).parent.parent
PRODUCT = ("shared", "actors", "client", "spark", "cli", "chaos")
PACKAGES = (*PRODUCT, "bench", "configs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_COMPILED_LINES = 200
MAX_LINE = 100  # of what ruff does not read
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
UNPICKLING = re.compile(r"\b(import c?pickle|from c?pickle|send_pyobj|recv_pyobj)\b")

# what each package may import of ours; itself always, except actors
MAY_IMPORT = {
    "shared": set(),
    "actors": {"shared"},
    "supervisor": {"shared", "actors"},
    "client": {"shared"},
    "spark": {"shared", "client"},
    "chaos": {"shared", "actors", "client"},
    "cli": {"shared", "actors", "supervisor", "client", "spark", "bench", "chaos", "configs"},
}


def _sources(*packages: str) -> list[Path]:
    """The Python files of these packages; `supervisor` is one file."""
    found = []
    for package in packages:
        single = ROOT / f"{package}.py"
        found += [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))
    return [path for path in found if "target" not in path.parts]


def _package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    """The dotted names below `penstock` that a file imports, as tuples."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = tuple(name.split("."))
            if parts[0] == "penstock" and parts[1:2] and parts[1] in (*PACKAGES, "supervisor"):
                yield parts[1:]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_follow_the_direction_of_the_design(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path in _sources(package)
        for name in _imports(path)
        if name[0] not in allowed
    ]
    assert wrong == []


def test_actors_never_import_each_other() -> None:
    """One module is one process; what two of them need is in shared/."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path in _sources("actors")
        for name in _imports(path)
        if name[0] == "actors"
    ]
    assert wrong == []


def test_the_import_package_links_every_top_level_package() -> None:
    links = {path.name for path in (ROOT / "src" / "penstock").iterdir() if path.is_symlink()}
    assert links == {*PACKAGES, "supervisor.py"}
    for name in links & set(PACKAGES):
        assert (ROOT / "src" / "penstock" / name).resolve() == ROOT / name


def test_no_file_is_longer_than_400_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {count}"
        for path in _sources(*PRODUCT, "supervisor", "bench")
        if (count := len(path.read_text("utf-8").splitlines())) > MAX_FILE_LINES
    ]
    assert long == []


def _compiled() -> list[Path]:
    """The sources of the compiled module."""
    native = sorted((ROOT / "shared").glob("native_*"))
    return [path for path in native if path.suffix in (".pyx", ".pxi", ".h")]


def test_no_file_that_is_compiled_is_longer_than_200_lines_or_has_a_line_over_100() -> None:
    lines = {path.name: path.read_text("utf-8").splitlines() for path in _compiled()}
    assert [name for name in lines if len(lines[name]) > MAX_COMPILED_LINES] == []
    assert [each for name in lines for each in lines[name] if len(each) > MAX_LINE] == []


def test_every_file_that_is_compiled_is_included_and_named_to_the_build() -> None:
    head = (ROOT / "shared" / "native_loops.pyx").read_text("utf-8")
    included = set(re.findall(r'^include "(.+)"$', head, re.M))
    assert included == {path.name for path in _compiled() if path.suffix == ".pxi"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    named = [Path(name).name for name in module["sources"] + module["depends"]]
    assert sorted(named) == [path.name for path in _compiled()]


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in _sources(*PRODUCT, "supervisor")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    wrong = [
        path
        for path in _sources(*PRODUCT, "supervisor", "bench", "tests")
        if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES
    ]
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in _sources(*PRODUCT, "supervisor", "bench", "tests")
        if path.read_text("utf-8").strip() and not ast.get_docstring(ast.parse(path.read_bytes()))
    ]
    assert silent == []


def test_nothing_is_unpickled() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in _sources(*PRODUCT, "supervisor", "bench")
        if UNPICKLING.search(path.read_text("utf-8"))
    ]
    assert found == []


def test_no_class_is_more_than_one_step_from_its_root() -> None:
    """One level of inheritance, errors excepted: a tree of errors is what callers catch by."""
    parents: dict[str, list[str]] = {}
    for path in _sources(*PRODUCT, "supervisor"):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    deep = [
        name
        for name, bases in parents.items()
        if any(parents.get(grand) for base in bases for grand in parents.get(base, []))
    ]
    assert deep == []


def test_every_message_type_is_used_by_somebody() -> None:
    declared = ROOT / "shared" / "messages.py"
    names = [
        node.name
        for node in ast.parse(declared.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    ]
    elsewhere = "\n".join(
        path.read_text("utf-8") for path in _sources(*PRODUCT, "supervisor") if path != declared
    )
    assert [name for name in names if not re.search(rf"\b{name}\b", elsewhere)] == []


def test_every_crash_point_is_passed_at_one_place() -> None:
    """And every place has its sentence in the table."""
    passed = Counter(
        node.args[0].value if isinstance(node.args[0], ast.Constant) else ast.unparse(node)
        for path in _sources(*PRODUCT, "supervisor")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "crash_point"
    )
    assert passed == Counter(list(POINTS))
