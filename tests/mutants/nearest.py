"""Which tests are near a file: its own first, then those that import it, then those of its folder,
which count as near as those of its importers, as fixtures may give them what they test. Among
equally near tests, those that share the rarest words with the file come first. Each file of a tree
is read once.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from functools import cache
from pathlib import Path

# They try the installation, the documents or other programs, and not the code's decisions.
_NOT_FOR_BUGS = {
    "test_packaging.py",
    "test_docs.py",
    "test_chinese_docs.py",
    "test_demo.py",
    "test_peers.py",
    "test_plot.py",
}
_NOT_FOLDERS = {"interop", "mutants", "bench"}
# What `make test` runs these long ones as, and rounds of faults of minutes.
_LAST = {"chaos", "spark", "test_chaos.py"}


def module_name(root: Path, path: Path) -> str:
    """The dotted name of a product file; a compiled source counts as the module it is part of."""
    if path.suffix != ".py":
        return "penstock.shared.loops.active"
    return ".".join(("penstock", *path.relative_to(root).with_suffix("").parts))


@cache
def imported(path: Path) -> set[str]:
    """The dotted names of this project that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("penstock.")}


@cache
def words(path: Path) -> frozenset[str]:
    """The longer words and names in a file."""
    return frozenset(re.findall(r"[a-zA-Z_]{5,}", path.read_text()))


def nearest_tests(root: Path, path: Path) -> list[Path]:
    """All test files, the nearest to `path` first."""
    folders = [each for each in root.iterdir() if each.is_dir() and each.name not in _OUTSIDE]
    sources = [source for folder in folders for source in folder.rglob("*.py")]
    importers: dict[str, set[str]] = {}
    for source in [*sources, root / "supervisor.py"]:
        for name in imported(source):
            importers.setdefault(name, set()).add(module_name(root, source))
    distance = {start: 0 for start in [module_name(root, path)]}
    waiting = deque(distance)
    while waiting:
        name = waiting.popleft()
        for other in importers.get(name, ()):
            if other not in distance:
                distance[other] = distance[name] + 1
                waiting.append(other)
    far = max(distance.values()) + 1

    # all compiled sources make one module, which these try as a whole
    own = f"test_{path.stem}" if path.suffix == ".py" else "test_native_"

    folder = root / "tests" / path.relative_to(root).parent
    while not folder.is_dir():  # a room may have its tests in those of the one around it
        folder = folder.parent
    of_folder: dict[Path, set[str]] = {}

    def fixtures(folder: Path) -> set[str]:
        if folder == root / "tests":  # what all tests may use tells nothing
            return set()
        if folder not in of_folder:
            file = folder / "conftest.py"
            named = imported(file) if file.exists() else set()
            of_folder[folder] = named | fixtures(folder.parent)
        return of_folder[folder]

    tests = [
        test
        for test in (root / "tests").glob("**/test_*.py")
        if test.name not in _NOT_FOR_BUGS and not _NOT_FOLDERS & set(test.relative_to(root).parts)
    ]
    holders = Counter(word for test in tests for word in words(test))

    def rank(test: Path) -> tuple[bool, bool, int, bool, float, str]:
        is_long = not _LAST.isdisjoint(test.relative_to(root).parts)
        names = imported(test) | fixtures(test.parent)
        is_elsewhere = folder == root / "tests" or folder not in test.parents
        near = min((distance.get(name, far) for name in names), default=far)
        # every actor has a test_actor.py
        is_another = not test.stem.startswith(own) or (is_elsewhere and near > 0)
        near = near if is_elsewhere else min(near, 1)
        likeness = sum(1 / holders[word] for word in words(test) & words(path))
        return is_another, is_long, near, is_elsewhere, -likeness, str(test)

    return sorted(tests, key=rank)


_OUTSIDE = {"tests", "src", "docs", "build", "dist", ".venv", ".git"}
