"""SQL92 filters: against RocketMQ's own outcomes, and against a model without texts."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shared.errors import FilterError
from penstock.shared.filters.sql92_nodes import MAX_DEPTH
from penstock.shared.filters.sql92_parser import MAX_CHARACTERS, MAX_NESTING, compile_sql92

GOLDEN = Path(__file__).parents[2] / "golden" / "sql92-5.3.jsonl"

# An expression as a tree: (operator, operands). The model evaluates trees; the text of a tree goes
# through the parser. Properties n and m hold numbers, s and t texts; each may be absent.
NUMBERS, TEXTS = ("n", "m"), ("s", "t")
Tree = tuple[Any, ...]
Properties = dict[str, str]


def test_every_outcome_is_that_of_rocketmq() -> None:
    kinds = set()
    for line in GOLDEN.read_text("utf-8").splitlines():
        expression, properties, outcome = json.loads(line)
        kinds.add(outcome)
        if outcome == "refused":
            with pytest.raises(FilterError):
                compile_sql92(expression)
        else:
            expression = _without_tail(expression)
            # null and error are not told apart from false: the message does not match
            assert compile_sql92(expression).matches(properties) == (outcome == "true"), line
            if outcome == "false":  # and false is no null: its negation matches
                assert compile_sql92(f"NOT ({expression}\n)").matches(properties), line
            if outcome == "null":
                assert compile_sql92(f"({expression}\n) IS NULL").matches(properties), line
    assert kinds == {"true", "false", "null", "error", "refused"}


def _without_tail(expression: str) -> str:
    """What RocketMQ evaluates: it ignores what follows a complete condition, where we refuse it."""
    try:
        compile_sql92(expression)
    except FilterError as error:
        assert "behind a complete expression" in error.what
        place = re.search(r"at character (\d+)", str(error.value))
        assert place
        return expression[: int(place[1]) - 1]
    return expression


def model(tree: Tree, properties: Properties) -> bool | None:
    """Three-valued logic, written as plainly as can be."""
    match tree:
        case ("and", a, b):
            both = model(a, properties), model(b, properties)
            return False if False in both else None if None in both else True
        case ("or", a, b):
            both = model(a, properties), model(b, properties)
            return True if True in both else None if None in both else False
        case ("not", a):
            value = model(a, properties)
            return None if value is None else not value
        case ("null", name):
            return name not in properties
        case (operator, name, *operands):
            if operator in ("contains", "startswith", "endswith"):
                text = properties.get(name, "")
                (part,) = operands
                found = {
                    "contains": part in text,
                    "startswith": text.startswith(part),
                    "endswith": text.endswith(part),
                }
                return bool(part) and found[operator]
            if name not in properties:
                return None
            if operator == "in":
                return properties[name] in operands
            if operator == "equals text":
                return properties[name] == operands[0]
            number = int(properties[name])
            return {
                "<": number < operands[0],
                "<=": number <= operands[0],
                ">": number > operands[0],
                ">=": number >= operands[0],
                "=": number == operands[0],
                "between": operands[0] <= number <= operands[-1],
            }[operator]
    raise AssertionError(tree)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def rendered(tree: Tree) -> str:
    """The text of a tree, every part in parentheses."""
    match tree:
        case ("and" | "or" as word, a, b):
            return f"({rendered(a)}) {word} ({rendered(b)})"
        case ("not", a):
            return f"NOT ({rendered(a)})"
        case ("null", name):
            return f"{name} IS NULL"
        case ("in", name, *texts):
            return f"{name} IN ({', '.join(map(quoted, texts))})"
        case ("equals text", name, text):
            return f"{name} = {quoted(text)}"
        case ("between", name, low, high):
            return f"{name} BETWEEN {low} AND {high}"
        case ("contains" | "startswith" | "endswith" as word, name, part):
            return f"{name} {word} {quoted(part)}"
        case (operator, name, number):
            return f"{name} {operator} {number}"
    raise AssertionError(tree)


numbers = st.integers(-20, 20)
texts = st.text(st.sampled_from("ab'é "), max_size=3)
conditions = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "="]), st.sampled_from(NUMBERS), numbers),
    # a range whose ends are not negative: RocketMQ takes no larger one first where it can see it
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from(NUMBERS)).map(
        lambda each: ("between", each[2], min(each[:2]), max(each[:2]))
    ),
    st.tuples(st.just("equals text"), st.sampled_from(TEXTS), texts),
    st.tuples(st.sampled_from(["contains", "startswith", "endswith"]), st.just("s"), texts),
    st.tuples(st.sampled_from(TEXTS), st.lists(texts, min_size=1, max_size=6)).map(
        lambda each: ("in", each[0], *each[1])
    ),
    st.tuples(st.just("null"), st.sampled_from(NUMBERS + TEXTS)),
)
trees = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
    ),
    max_leaves=12,
)
some_properties = st.fixed_dictionaries(
    {},
    optional={
        **{name: numbers.map(str) for name in NUMBERS},
        **{name: texts.filter(bool) for name in TEXTS},
    },
)


@given(trees, some_properties)
@settings(max_examples=400)
def test_an_expression_means_what_its_tree_means(tree: Tree, properties: Properties) -> None:
    assert compile_sql92(rendered(tree)).matches(properties) == (model(tree, properties) is True)


@given(st.lists(st.tuples(st.sampled_from(["and", "or"]), conditions), min_size=1, max_size=8))
def test_and_binds_closer_than_or(parts: list[tuple[str, Tree]]) -> None:
    text = rendered(parts[0][1])
    sums: list[Tree] = [parts[0][1]]
    for word, condition in parts[1:]:
        text += f"\n{word.upper()}\t{rendered(condition)}"
        if word == "and":
            sums[-1] = ("and", sums[-1], condition)
        else:
            sums.append(condition)
    for properties in ({}, {"n": "3", "s": "a"}, {"n": "-3", "m": "0", "s": "b", "t": "a"}):
        truths = [model(each, properties) for each in sums]
        assert compile_sql92(text).matches(properties) == (True in truths)


WORDS = "a 5 5.5 'x' '' = <> < ( ) AND or NOT in BETWEEN is NULL contains TRUE , - + ' /* */ -- l"
soup = st.lists(st.sampled_from([*WORDS.split(), '"', "\n", "E5", ".5", "0", ";", "\x00", "é"]))


@given(soup.map(" ".join) | st.text(max_size=30), some_properties)
@settings(max_examples=400)
def test_any_text_is_a_filter_or_an_error_that_names_a_place(
    text: str, properties: Properties
) -> None:
    try:
        assert compile_sql92(text).matches(properties) in (True, False)
    except FilterError as error:
        assert error.status == "SUBSCRIPTION_PARSE_FAILED"
        assert error.hint and ("character" in str(error.value) or "end" in str(error.value))


@pytest.mark.parametrize(
    "text", ["a = 1 b = 2", "a = 1)", "a = 1 -- no end of the line", "a = 1 '"]
)
def test_what_follows_a_complete_condition_is_an_error(text: str) -> None:
    with pytest.raises(FilterError, match="behind a complete expression|begins no word"):
        compile_sql92(text)


def test_an_error_names_the_place_and_what_stands_there() -> None:
    with pytest.raises(FilterError, match=r"at character 6, '\) OR b = 2'"):
        compile_sql92("(a = ) OR b = 2")
    with pytest.raises(FilterError, match="at its end"):
        compile_sql92("a = 1 AND")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1000 + "a = 1" + ")" * 1000,
        "NOT " * 1000 + "TRUE",
        "-" * 1000 + "a = 1",
        "a" + " IS NULL" * 1000,
        "a" + " CONTAINS 'x'" * 1000,
        "a = 1" + " " * MAX_CHARACTERS,
    ],
)
def test_a_filter_that_is_too_deep_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match="deep|characters"):
        compile_sql92(text)


def test_a_filter_may_be_nested_and_long() -> None:
    inside = "(" * (MAX_NESTING - 1) + "a = 1" + ")" * (MAX_NESTING - 1)
    assert compile_sql92(inside).matches({"a": "1"})
    assert compile_sql92("a" + " IS NULL" * (MAX_DEPTH - 1)).matches({"a": "1"}) in (True, False)
    assert compile_sql92(" OR ".join(f"a = {number}" for number in range(600))).matches(
        {"a": "599"}
    )


@pytest.mark.parametrize(
    "text", ["1" * 30_000 + "x", "." * 30_000, "0x" + "a" * 30_000, "-" * 30_000]
)
def test_a_long_value_is_soon_known_not_to_be_a_number(text: str) -> None:
    found = compile_sql92("a > 5.5 OR a > 5 OR a > b")
    began = time.process_time()
    assert not found.matches({"a": text, "b": text})
    assert time.process_time() - began < 1
