"""Plausible bugs, made by rules out of a file's source. Pure: text in, mutants out.

A mutant is one small change: a comparison that is off by one, a branch taken the wrong way round, a
number that is one more, a call or an assignment left out. What only words or types depend on is
left alone: error texts, log lines, annotations and assertions.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

# Calls that tell somebody something, or that a test already demands at exactly one place.
_TOLD = {"report", "echo", "debug", "info", "warning", "error", "crash_point"}
_SKIPPED_FUNCTIONS = {"__repr__", "__str__", "__getstate__"}

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop"}
# Of compiled sources, which `ast` cannot read: what stands on a line, and what it becomes.
_COMPILED = [
    (re.compile(rf"(?<=[\w)\]] ){re.escape(before)}(?= [\w(-])"), after)
    for before, after in (
        ("<", "<="),
        ("<=", "<"),
        (">", ">="),
        (">=", ">"),
        ("==", "!="),
        ("!=", "=="),
        ("+", "-"),
        ("-", "+"),
        ("and", "or"),
        ("or", "and"),
    )
]


class Mutant(NamedTuple):
    """One change of a file: the bytes [start, stop) become `after`."""

    rule: str
    line: int
    start: int
    stop: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """The source with the bug in it."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


def python_mutants(source: bytes) -> list[Mutant]:
    """All mutants of a Python file, in order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, rule, after in _changes(ast.parse(source), ()):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = source[start:stop].decode()
        found.append(Mutant(rule, node.lineno, start, stop, before, after))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.after))


def compiled_mutants(source: bytes) -> list[Mutant]:
    """All mutants of a Cython file, in order: operators only, outside comments and strings."""
    found, start = [], 0
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        text = line.decode()
        code = text.partition("#")[0]
        if text.isascii() and not {'"', "'"} & set(code) and not code.startswith("cdef extern"):
            for pattern, after in _COMPILED:
                for match in pattern.finditer(code):
                    at, end = start + match.start(), start + match.end()
                    found.append(Mutant("operator", number, at, end, match[0], after))
        start += len(line)
    return found


Change = tuple[ast.expr | ast.stmt, str, str]


def _changes(node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[Change]:
    if _left_alone(node, parents):
        return
    if isinstance(node, ast.expr):
        for rule, mutated in _expressions(node):
            # in parentheses, for what stands around it may bind more tightly
            yield node, rule, f"({ast.unparse(mutated)})"
    elif isinstance(node, ast.stmt):
        yield from _statements(node, parents)
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from _changes(child, (*parents, node))


def _left_alone(node: ast.AST, parents: tuple[ast.AST, ...]) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return True  # places inside an f-string are wrong before Python 3.12
    if isinstance(node, ast.FunctionDef) and node.name in _SKIPPED_FUNCTIONS:
        return True
    if isinstance(node, ast.Call) and _name(node.func) in _TOLD:
        return True
    if isinstance(node, ast.keyword) and node.arg == "frozen":
        return True  # it only forbids, and nobody does what it forbids
    if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
        return True
    # constants, struct fields, tables: at a module's or class's own level
    return isinstance(node, ast.Assign | ast.AnnAssign) and not any(
        isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in parents
    )


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What an expression may be mistaken for."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            mutated = copy.deepcopy(node)
            mutated.ops[index] = _COMPARED[type(operator)]()
            yield "comparison", mutated
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        mutated = copy.deepcopy(node)
        mutated.op = _COMPUTED[type(node.op)]()
        yield "arithmetic", mutated
    elif isinstance(node, ast.BoolOp):
        other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.IfExp):
        yield "branches", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        value = not node.value if type(node.value) is bool else int(node.value) + 1
        yield "constant", ast.Constant(value)
    elif isinstance(node, ast.Call) and (name := _CALLED.get(_name(node.func))):
        mutated = copy.deepcopy(node)
        if isinstance(mutated.func, ast.Name):
            mutated.func.id = name
        else:
            assert isinstance(mutated.func, ast.Attribute)
            mutated.func.attr = name
        yield "call", mutated


def _statements(node: ast.stmt, parents: tuple[ast.AST, ...]) -> Iterator[Change]:
    """What may be forgotten, or done the wrong way round."""
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        yield node.test, "condition", f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if _name(node.value.func) not in _TOLD | {"__init__"}:
            yield node, "left out", "pass"
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        begun = any(isinstance(e, ast.FunctionDef) and e.name == "__init__" for e in parents)
        if not begun:  # an attribute that is not there is found by anybody
            yield node, "left out", "pass"
    elif isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
        mutated = copy.deepcopy(node)
        mutated.op = _COMPUTED[type(node.op)]()
        yield node, "arithmetic", ast.unparse(mutated)
    elif isinstance(node, ast.Break):
        yield node, "loop", "continue"
    elif isinstance(node, ast.Continue):
        yield node, "loop", "break"
