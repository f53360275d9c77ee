"""The bugs that `make mutants` makes are small and different; the nearest tests come first."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.takes(15)

ROOT = Path(__file__).parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


mutate = _load("mutate")
nearest = _load("nearest")

SOURCE = b"""
LIMIT = 3

class Clamped(Struct, frozen=True):
    value: int = 0

def clamp(value: int, low: int) -> int:
    assert low > 0
    if value < low and not self.open:
        raise ValueError(f"{low + 1}")
    self.seen = value
    self.tell(min(value, LIMIT) + 1)
    return value
"""


def test_each_rule_makes_the_bug_that_it_names() -> None:
    made = {(mutant.rule, mutant.before, mutant.after) for mutant in mutate.python_mutants(SOURCE)}
    assert made == {
        ("condition", "value < low and not self.open", "(not (value < low and (not self.open)))"),
        ("and/or", "value < low and not self.open", "(value < low or not self.open)"),
        ("comparison", "value < low", "(value <= low)"),
        ("not", "not self.open", "(self.open)"),
        ("left out", "self.seen = value", "pass"),
        ("left out", "self.tell(min(value, LIMIT) + 1)", "pass"),
        ("arithmetic", "min(value, LIMIT) + 1", "(min(value, LIMIT) - 1)"),
        ("call", "min(value, LIMIT)", "(max(value, LIMIT))"),
        ("constant", "1", "(2)"),
    }


@pytest.mark.parametrize(
    "name", ["shared/recovery/find_log_end.py", "actors/reput.py", "supervisor.py"]
)
def test_every_mutant_of_a_real_file_is_another_program(name: str) -> None:
    source = (ROOT / name).read_bytes()
    sound = ast.dump(ast.parse(source))
    mutants = mutate.python_mutants(source)
    assert len(mutants) > 20
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.apply(source))) != sound, mutant


def test_a_compiled_source_has_its_operators_changed_and_nothing_else() -> None:
    source = b"if at + size <= stop and not left:  # at < stop\n    text = 'a < b'\n"
    made = {mutant.apply(source).splitlines()[0] for mutant in mutate.compiled_mutants(source)}
    assert made == {
        b"if at - size <= stop and not left:  # at < stop",
        b"if at + size < stop and not left:  # at < stop",
        b"if at + size <= stop or not left:  # at < stop",
    }


def test_the_tests_of_a_file_come_first_and_those_far_away_last() -> None:
    tests = nearest.nearest_tests(ROOT, ROOT / "shared" / "log" / "damage.py")
    names = [str(test.relative_to(ROOT / "tests")) for test in tests]
    assert len(names) == len(set(names)) > 50
    direct = next(
        i
        for i, name in enumerate(names)
        if "shared.log.damage" in (ROOT / "tests" / name).read_text()
    )
    assert direct < 5 and names.index("spark/test_scan.py") > len(names) - 60


@pytest.mark.parametrize(
    "name", ["actors/gateway/requests/queues.py", "actors/scheduler/levels.py"]
)
def test_tests_that_have_all_from_fixtures_are_near_what_their_folder_is_for(name: str) -> None:
    tests = nearest.nearest_tests(ROOT, ROOT / name)
    folder = (ROOT / "tests" / name).parent
    own = {*folder.glob("test_*.py")}
    # a few that import the file's own name may come before the last of them
    assert own and own <= {*tests[: len(own) + 2]}


def test_tests_of_other_files_with_the_same_name_are_not_a_files_own() -> None:
    tests = nearest.nearest_tests(ROOT, ROOT / "actors" / "coordinator" / "actor.py")
    first, second = (test.relative_to(ROOT / "tests" / "actors") for test in tests[:2])
    assert str(first) == "coordinator/test_actor.py" and second.parts[0] == "coordinator"


def test_the_compiled_loops_are_tried_by_the_tests_of_the_compiled_module_first() -> None:
    tests = nearest.nearest_tests(ROOT, ROOT / "shared" / "loops" / "native" / "record.pxi")
    compiled = {*(ROOT / "tests" / "shared" / "loops").glob("test_native_*.py")}
    assert len(compiled) > 3 and {*tests[:3]} < compiled
