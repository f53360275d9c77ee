"""The source tree is tested too: who may import whom, sizes, names, and what is banned."""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from penstock.shared.faults import POINTS

ROOT = Path(__file__).parent.parent
PRODUCT = (
    *("shared", "remoting", "actors", "client", "maintenance", "spark", "cli", "chaos"),
    *("embedded", "testing", "dataframes"),
)
PACKAGES = (*PRODUCT, "bench", "configs")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_COMPILED_LINES = 200
MAX_LINE = 100  # of what ruff does not read
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
UNPICKLING = re.compile(r"\b(import c?pickle|from c?pickle|send_pyobj|recv_pyobj)\b")

# what each package may import of the project; itself always, except actors
MAY_IMPORT = {
    "shared": set(),
    "remoting": {"shared"},
    # of client only core: it has no sockets of its own
    "actors": {"shared", "client", "remoting"},
    "supervisor": {"shared", "actors"},
    "client": {"shared"},
    "maintenance": {"shared"},
    "spark": {"shared", "client", "maintenance"},
    # it speaks RocketMQ's protocol to a gateway that it attacks
    "chaos": {"shared", "remoting", "actors", "client", "maintenance", "spark"},
    "bench": {"shared", "remoting", "actors", "client", "chaos", "spark", "dataframes"},
    "embedded": {"shared", "supervisor", "client"},
    "testing": {"embedded", "client"},
    "dataframes": {"shared", "client", "spark"},
    "cli": {
        *("shared", "actors", "supervisor", "client", "maintenance"),
        *("spark", "bench", "chaos", "configs", "dataframes"),
    },
}

# The rooms of shared/, from the ground up: each may import those before it, and no other.
ROOMS = (
    "formats",
    "files",
    "filters",
    "messaging",
    "wire",
    "loops",
    "memory",
    "log",
    "queue",
    "index",
    "store",
    "progress",
    "process",
    "recovery",
)
MAX_GROUND_FILES = 12
MAX_ROOM_FILES = 16
MAX_TEST_FILES = 20  # in a folder: more go into folders as the rooms that they test are called


def _sources(*packages: str) -> list[Path]:
    """The Python files of these packages; `supervisor` is one file."""
    found = []
    for package in packages:
        single = ROOT / f"{package}.py"
        found += [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))
    return [path for path in found if "target" not in path.parts]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(path)))


@pytest.fixture(scope="module", autouse=True)
def _trees_for_this_module_only() -> Iterator[None]:
    """The trees of all sources take 150 MB, and to look for garbage among them longer than they."""
    gc.disable()
    yield
    gc.enable()
    _nodes.cache_clear()
    _parsed.cache_clear()


def _package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    """The dotted names below `penstock` that a file imports, as tuples."""
    for node in _nodes(path):
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


def test_an_actors_organs_are_its_own() -> None:
    """One folder is one process; what two of them need is in shared/. Chaos may open them all."""
    actors = {path.stem for path in (ROOT / "actors").iterdir()} - {"__init__", "__pycache__"}
    wrong = []
    for path in _sources(*PRODUCT, "supervisor", "bench"):
        own = path.relative_to(ROOT).with_suffix("").parts[:2]
        for name in _imports(path):
            is_face = name[:1] == ("actors",) and len(name) == 3  # actors.writer.Writer
            if name[0] != "actors" or name[:2] == own or own[0] == "chaos":
                continue
            if own[0] == "actors" or not is_face or name[1] not in actors:
                wrong.append(f"{path.relative_to(ROOT)} imports {'.'.join(name)}")
    assert wrong == []


def test_of_the_client_an_actor_drives_only_the_core() -> None:
    """An actor that puts messages into the log is a producer like any other."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path in _sources("actors")
        for name in _imports(path)
        if name[0] == "client" and name[1] != "core"
    ]
    assert wrong == []


def _room(name: tuple[str, ...]) -> str:
    """The room of shared/ that a dotted name below `penstock` is in; "" for the ground."""
    return name[1] if name[1] in ROOMS else ""


def test_the_rooms_of_shared_import_only_what_is_below_them() -> None:
    below = {"": {""}} | {room: {"", *ROOMS[: at + 1]} for at, room in enumerate(ROOMS)}
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path in _sources("shared")
        for name in _imports(path)
        if name[0] == "shared"
        and _room(name) not in below[_room(path.relative_to(ROOT).with_suffix("").parts)]
    ]
    assert wrong == []


def test_a_room_imports_exactly_what_its_sentence_says() -> None:
    """An arrow that is wanted is written down with the room, so that it was decided."""
    wrong = []
    for room in ROOMS[:-1]:  # recovery, the last one, may import them all
        head = ast.get_docstring(ast.parse((ROOT / "shared" / room / "__init__.py").read_bytes()))
        sentence = re.search(r"May import (.+?)\.(?:\s|$)", head or "", re.S)
        said = set(re.findall(r"`(\w+)`", sentence[1] if sentence else ""))
        real = {
            _room(name)
            for path in _sources(f"shared/{room}")
            for name in _imports(path)
            if name[0] == "shared"
        }
        if said != real - {"", room}:
            wrong.append(f"{room} says {sorted(said)} and imports {sorted(real - {'', room})}")
    assert wrong == []


def _inner_rooms(package: str) -> list[str]:
    """The folders of a package, each a room."""
    return sorted(path.parent.name for path in (ROOT / package).glob("*/__init__.py"))


@pytest.mark.parametrize("package", ["client", "cli"])
def test_a_room_of_clients_and_commands_imports_exactly_what_its_sentence_says(
    package: str,
) -> None:
    rooms = _inner_rooms(package)
    wrong = []
    for room in rooms:
        head = ast.get_docstring(_parsed(ROOT / package / room / "__init__.py")) or ""
        sentence = re.search(r"May import (.+?)\.(?:\s|$)", head, re.S)
        said = set(re.findall(r"`(\w+)`", sentence[1] if sentence else ""))
        said |= {""} if sentence and "the ground" in sentence[1] else set()
        # a room of commands may be named as the package is whose commands they are
        real = {
            name[0] if name[0] != package else name[1] if name[1] in rooms else ""
            for path in _sources(f"{package}/{room}")
            for name in _imports(path)
            if name[:2] != (package, room)
        }
        if said != real:
            wrong.append(f"{room} says {sorted(said)} and imports {sorted(real)}")
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_rooms_of_a_package_import_each_other(package: str) -> None:
    """Its ground, which has the tables of what is in them and the tools of all, is no room."""
    rooms = _inner_rooms(package)
    ways = {
        (room, name[1])
        for room in rooms
        for path in _sources(f"{package}/{room}")
        for name in _imports(path)
        if name[0] == package and name[1] in rooms and name[1] != room
    }
    while more := {(a, d) for a, b in ways for c, d in ways if b == c} - ways:
        ways |= more
    assert sorted(room for room in rooms if (room, room) in ways) == []


def test_the_files_of_a_room_import_each_other_in_one_direction() -> None:
    graph: dict[str, set[str]] = {}
    for path in _sources(*PRODUCT):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.name != "__init__.py":  # a package's face imports what is in it
            graph[".".join(parts)] = {
                ".".join(name[:n]) for name in _imports(path) for n in range(2, len(name) + 1)
            }
    done: set[str] = set()

    def circle(name: str, way: tuple[str, ...]) -> tuple[str, ...]:
        if name in way:
            return way[way.index(name) :]
        if name in done or name not in graph:
            return ()
        for other in sorted(graph[name] - {name}):
            if found := circle(other, (*way, name)):
                return found
        done.add(name)
        return ()

    assert [found for name in sorted(graph) if (found := circle(name, ()))] == []


def test_nobody_but_active_knows_that_the_loops_have_two_forms() -> None:
    """`forms` has what callers need besides; bench compares the forms, and chaos watches one."""
    may = {"shared/loops/active.py", "chaos/stepped/tap.py"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path in _sources(*PRODUCT, "supervisor")
        for name in _imports(path)
        if name[:3] == ("shared", "loops", "pure")
        and path.parent != ROOT / "shared" / "loops" / "pure"
        and str(path.relative_to(ROOT)) not in may
    ]
    assert wrong == []


def test_every_room_is_small_and_says_what_it_is_for_and_what_must_stay_out() -> None:
    shared = ROOT / "shared"
    assert {path.name for path in shared.iterdir() if path.is_dir()} - {"__pycache__"} == {*ROOMS}
    assert len(list(shared.glob("*.py"))) <= MAX_GROUND_FILES
    for package in (*PRODUCT, "bench"):
        folders = [path.parent for path in _sources(package) if path.name == "__init__.py"]
        for folder in folders:
            files = [path for path in folder.iterdir() if path.suffix in (".py", ".pxi", ".pyx")]
            assert len(files) <= MAX_ROOM_FILES, folder
    for path in _sources(*PRODUCT, "bench"):
        if path.name == "__init__.py":
            head = ast.get_docstring(_parsed(path)) or ""
            assert "ay import" in head, path
            assert re.search(r"\b(Never|never|no|No|Nothing|nothing)\b", head), path


def test_no_folder_of_tests_is_larger_than_a_room() -> None:
    sizes = Counter(path.parent for path in _sources("tests"))
    assert {folder: size for folder, size in sizes.items() if size > MAX_TEST_FILES} == {}


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


# What is compiled: the loops of brokers and clients, and the verifier's own.
COMPILED = (ROOT / "shared" / "loops", ROOT / "maintenance" / "verify_loops")


def _compiled(loops: Path) -> list[Path]:
    """The sources of a compiled module."""
    native = sorted((loops / "native").iterdir())
    return [path for path in native if path.suffix in (".pyx", ".pxi", ".h")]


@pytest.mark.parametrize("loops", COMPILED)
def test_no_file_that_is_compiled_is_longer_than_200_lines_or_has_a_line_over_100(
    loops: Path,
) -> None:
    lines = {path.name: path.read_text("utf-8").splitlines() for path in _compiled(loops)}
    assert [name for name in lines if len(lines[name]) > MAX_COMPILED_LINES] == []
    assert [each for name in lines for each in lines[name] if len(each) > MAX_LINE] == []


@pytest.mark.parametrize("loops", COMPILED)
def test_every_file_that_is_compiled_is_included_and_named_to_the_build(loops: Path) -> None:
    head = (loops / "native" / "compiled.pyx").read_text("utf-8")
    included = set(re.findall(r'^include "(.+)"$', head, re.M))
    assert included == {path.name for path in _compiled(loops) if path.suffix == ".pxi"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    modules = {each["name"]: each for each in project["tool"]["setuptools"]["ext-modules"]}
    assert len(modules) == len(COMPILED)
    name = ".".join(("penstock", *loops.relative_to(ROOT).parts, "compiled"))
    named = [Path(each) for each in modules[name]["sources"] + modules[name]["depends"]]
    folder = Path("src", "penstock", loops.relative_to(ROOT), "native")
    assert sorted(named) == [folder / path.name for path in _compiled(loops)]


def test_the_verifiers_loops_share_nothing_with_what_they_check() -> None:
    """They may know each other, and no reader or writer of the format."""
    loops = ROOT / "maintenance" / "verify_loops"
    native = "\n".join(path.read_text("utf-8") for path in _compiled(loops))
    known = re.findall(r"^ *(?:from|import|cimport) +(penstock\S*)", native, re.M)
    assert known == ["penstock.maintenance.verify_loops.pure"]
    assert [*_imports(loops / "pure.py")] == []
    # and each has its CRC-32 from where its counterpart in the broker has none
    broker = ROOT / "shared" / "loops"
    brokers_native = "\n".join(path.read_text("utf-8") for path in _compiled(broker))
    brokers_pure = "\n".join(path.read_text("utf-8") for path in (broker / "pure").glob("*.py"))
    crc32 = r"^ *from +(\S+) +import +.*\bcrc32\b"
    assert re.findall(crc32, native, re.M) == ["isal.isal_zlib"]
    assert not re.search(r"^ *(?:import|from) +isal\b", brokers_native, re.M)
    assert re.findall(crc32, (loops / "pure.py").read_text("utf-8"), re.M) == ["zlib"]
    assert not re.search(r"^ *(?:import|from) +zlib\b", brokers_pure, re.M)


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in _sources(*PRODUCT, "supervisor")
        for node in _nodes(path)
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
        if path.read_text("utf-8").strip() and not ast.get_docstring(_parsed(path))
    ]
    assert silent == []


def test_nothing_is_unpickled() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in _sources(*PRODUCT, "supervisor", "bench")
        if UNPICKLING.search(path.read_text("utf-8"))
    ]
    assert found == []


def test_what_a_clients_threads_decode_has_its_decoder_from_the_import_on() -> None:
    """msgspec makes what it knows of a type at its first use, and a second thread that uses it half
    way through ends the process."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _sources("shared", "client", "embedded", "dataframes", "testing")
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "decode"
        and any(each.arg == "type" for each in node.keywords)
    ]
    assert not found, found


def test_no_class_is_more_than_one_step_from_its_root() -> None:
    """One level of inheritance, errors excepted: a tree of errors is what callers catch by."""
    parents: dict[str, list[str]] = {}
    for path in _sources(*PRODUCT, "supervisor"):
        if path.name == "errors.py":
            continue
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    deep = [
        name
        for name, bases in parents.items()
        if any(parents.get(grand) for base in bases for grand in parents.get(base, []))
    ]
    assert deep == []


def test_every_message_type_is_used_by_somebody() -> None:
    declared = ROOT / "shared" / "wire" / "messages.py"
    names = [
        node.name
        for node in ast.parse(declared.read_bytes()).body
        if isinstance(node, ast.ClassDef) and node.name != "WireMessage"  # the base of them all
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
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "crash_point"
    )
    assert passed == Counter(list(POINTS))
