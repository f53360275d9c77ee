"""What the parts of an SQL92 filter mean: RocketMQ's values, comparisons and three-valued logic.

A value is text, a number, TRUE or FALSE, or NULL. A message's properties are text; an absent one is
NULL. A Node is one part of an expression, ready to be evaluated, and its constructors here refuse
what RocketMQ's parser refuses. RocketMQ's rules are those of Java's types:

* text against a number becomes a number of that type: Integer up to 2147483647, Long above, Double
  for one with a point. If the text is not such a number, as in "5.5" compared with 5, the message
  does not match.
* text against text is equal or not; for < and > both become Doubles.
* NULL makes a comparison NULL, and AND, OR, NOT are SQL's; only TRUE matches. A property by itself
  is never TRUE: it is text.

The grammar is in sql92_parser.py. Values come from senders and may be any text, so evaluating a
filter raises nothing but Incomparable.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.shared.errors import FilterError

Value = bool | int | float | str | None
Get = Callable[[str], str | None]

# How deep nodes may be nested. Each level is a call for each message, so this keeps it far from
# Python's recursion limit, which a chain like `a IS NULL IS NULL ...` could otherwise reach.
MAX_DEPTH = 128
MAX_INTEGER = 2**31 - 1
MAX_LONG = 2**63 - 1
LESS, EQUAL = -1, 0

# What Java's parsers accept, which differs from Python's: int() and float() accept 7_0, and float()
# accepts inf. The patterns decide, and Python only converts. An Integer's digits may be of any
# script, as in Java, so \d is not limited to ASCII there.
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII
)
_HEX_DOUBLE = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII
)
# Java's trim: everything up to the space, but no spaces beyond ASCII, which strip() would remove
_JAVA_SPACE = "".join(map(chr, range(33)))


class Incomparable(Exception):
    """Values that RocketMQ cannot compare: the message does not match.

    It leaves the whole expression, as RocketMQ's exception does: a part after an OR that would be
    TRUE is not evaluated, while after NULL it could have decided.
    """


class Node(NamedTuple):
    """One part of an expression. `boolean` says that it yields TRUE, FALSE or NULL.

    `value` counts only if `is_constant`; NULL is a constant too, so None alone says nothing. What
    RocketMQ's parser refuses depends on the kind of the operands, so that is kept here, next to a
    closure that does not show it.
    """

    evaluate: Callable[[Get], Value]
    boolean: bool = False
    depth: int = 1
    is_constant: bool = False
    value: Value = None
    name: str = ""  # the property's, if it is one


def constant(value: Value) -> Node:
    """A literal. NULL counts as boolean: RocketMQ accepts it where a condition is needed."""
    boolean = value is None or isinstance(value, bool)
    return Node(lambda get: value, boolean, is_constant=True, value=value)


def property_of(name: str) -> Node:
    """A property: text, or NULL where the message does not have it."""
    return Node(lambda get: get(name), name=name)


def truth(node: Node) -> Node:
    """The node where TRUE or FALSE is needed. Raises FilterError for text, a number or a sign."""
    if node.boolean:
        return node
    if not node.name:
        raise FilterError("there is a value where a condition is needed")
    # RocketMQ's properties are text, and text is never TRUE, not even "true"
    return Node(lambda get: None if get(node.name) is None else False, True, 2)


def negative(node: Node) -> Node:
    """A minus. Text does not become a number here, so for a property the result is NULL.

    The result is not a constant, even for a number: RocketMQ does not fold it either, so BETWEEN 7
    AND -5 passes its check, and matches nothing.
    """

    def evaluate(get: Get) -> Value:
        value = node.evaluate(get)
        return None if isinstance(value, bool | str) or value is None else -value

    return Node(evaluate, depth=_above(node))


def negation(node: Node) -> Node:
    """NOT, which leaves NULL as it is: NOT (a = 1) does not match a message without `a`."""
    inner = truth(node)

    def evaluate(get: Get) -> Value:
        value = inner.evaluate(get)
        return None if value is None else not value

    return Node(evaluate, True, _above(inner))


def junction(nodes: list[Node], decides: bool) -> Node:
    """OR, which TRUE decides, or AND, which FALSE decides. Evaluation stops at what decides."""
    if len(nodes) == 1:
        return nodes[0]
    conditions = [truth(node) for node in nodes]
    parts = tuple(node.evaluate for node in conditions)

    # a flat loop instead of nested pairs: a filter of a thousand ORs is one level deep
    def evaluate(get: Get) -> Value:
        outcome: Value = not decides
        for part in parts:
            value = part(get)
            if value is decides:
                return decides
            if value is None:
                # not yet the outcome: a later part can still decide
                outcome = None
        return outcome

    return Node(evaluate, True, _above(*conditions))


def ordered(left: Node, right: Node, compare: Callable[[Any, Any], bool]) -> Node:
    """<, <=, > or >=, as Python's operator. Raises FilterError for TRUE, FALSE, NULL and text.

    Only constants and conditions can be refused: what a property has depends on the message.
    """
    for node in (left, right):
        if node.boolean or isinstance(node.value, str):
            raise FilterError("<, <=, > or >= compares something else than properties and numbers")
    get_left, get_right = left.evaluate, right.evaluate

    def evaluate(get: Get) -> Value:
        a = get_left(get)
        if a is None:
            return None
        # Only now: a NULL on the left decides, even where the right side would be Incomparable.
        b = get_right(get)
        if b is None:
            return None
        if isinstance(a, str):
            if type(b) is int:  # what nearly all filters do
                return compare(_number(a, b), b)
            if isinstance(b, str):
                # two properties: RocketMQ orders them by value, although = compares them as text
                a, b = _double(a), _double(b)
        return compare(_order(a, b), EQUAL)

    return Node(evaluate, True, _above(left, right))


def equal(left: Node, right: Node) -> Node:
    """=; the parser makes <> from it by a negation.

    Raises FilterError where RocketMQ's parser does. Its check is one-sided, and so is this one:
    TRUE = 5 is refused, but 5 = TRUE is a condition that is always FALSE.
    """
    if any(node.is_constant and node.value is None for node in (left, right)):
        raise FilterError("= or <> is used with NULL", hint="write IS NULL or IS NOT NULL")
    if left.is_constant and right.is_constant and left.boolean and not right.boolean:
        raise FilterError("= or <> compares what can never be equal")
    return _same(left, right)


def is_null(node: Node) -> Node:
    """IS NULL. Not made by `equal`, which refuses a NULL in the text of a filter."""
    return _same(node, constant(None))


def _same(left: Node, right: Node) -> Node:
    def evaluate(get: Get) -> Value:
        a, b = left.evaluate(get), right.evaluate(get)
        # RocketMQ's rule is not symmetric: NULL on the left makes it NULL, on the right FALSE. That
        # two NULLs are equal is not SQL either, but IS NULL is built on it.
        if a is None or b is None:
            if a is b:
                return True
            return None if a is None else False
        return a == b if isinstance(a, str) and isinstance(b, str) else _order(a, b) == EQUAL

    return Node(evaluate, True, _above(left, right))


def between(node: Node, low: Node, high: Node) -> Node:
    """BETWEEN. Raises FilterError for bounds that are neither properties nor numbers, and for two
    numbers in the wrong order.

    The node is evaluated twice: nearly always it is a property, whose look-up costs little.
    """
    if low.is_constant and high.is_constant:
        if low.boolean or high.boolean or isinstance(low.value, str) or isinstance(high.value, str):
            raise FilterError("BETWEEN compares something else than properties and numbers")
        assert low.value is not None and high.value is not None
        if _order(high.value, low.value) == LESS:
            raise FilterError("BETWEEN names the larger number first")
    return junction(
        [
            ordered(node, low, operator.ge),
            ordered(node, high, operator.le),
        ],
        decides=False,
    )


def not_between(node: Node, low: Node, high: Node) -> Node:
    """NOT BETWEEN. Bounds in the wrong order pass, as in RocketMQ, which checks only BETWEEN."""
    return junction(
        [ordered(node, low, operator.lt), ordered(node, high, operator.gt)],
        decides=True,
    )


def one_of(node: Node, texts: list[str], negated: bool) -> Node:
    """IN and NOT IN, for texts as they are written: '5' is not '05'.

    Raises FilterError for anything but a property, as RocketMQ does, constants included.
    """
    if not node.name:
        raise FilterError("IN does not stand behind a property")
    found = frozenset(texts)

    def evaluate(get: Get) -> Value:
        value = get(node.name)
        return None if value is None else (value in found) != negated

    return Node(evaluate, True, 2)


def text_test(node: Node, test: Callable[[str, str], bool], part: str, negated: bool) -> Node:
    """CONTAINS and its kin: FALSE, even if negated, for what is not text, and for an empty `part`.

    RocketMQ's rule differs from SQL: an absent property makes it FALSE here and not NULL, so NOT
    around the test matches such a message, and NOT inside it does not.
    """

    def evaluate(get: Get) -> Value:
        value = node.evaluate(get) if part else None
        return isinstance(value, str) and test(value, part) != negated

    return Node(evaluate, True, _above(node))


def _above(*nodes: Node) -> int:
    """The depth of a node over these. Raises FilterError before evaluation could go too deep.

    The parser's limit on nesting does not cover this: a chain of IS NULL nests nodes without a
    single parenthesis.
    """
    depth = 1 + max(node.depth for node in nodes)
    if depth > MAX_DEPTH:
        raise FilterError(f"the filter is more than {MAX_DEPTH} levels deep", hint="simplify it")
    return depth


def _order(left: bool | int | float | str, right: bool | int | float | str) -> int:
    """Java's compareTo, after one side has been converted to the other's type: -1, 0 or 1.

    Not symmetric, as in RocketMQ: compared with TRUE or FALSE, text on the left becomes one of
    these, while on the right it raises Incomparable. A number is never equal to TRUE or FALSE: LESS
    says that, and no caller asks which of the two is smaller.
    """
    if isinstance(left, str):
        if isinstance(right, bool):
            left = left.lower() == "true"
        elif not isinstance(right, str):
            left = _number(left, right)
    elif isinstance(left, bool):
        if isinstance(right, str):
            raise Incomparable  # RocketMQ casts the text to Boolean, which throws
        if not isinstance(right, bool):
            return LESS
    elif isinstance(right, str):
        right = _number(right, left)
    elif isinstance(right, bool):
        return LESS
    if isinstance(left, float) or isinstance(right, float):
        return _order_of_doubles(float(left), float(right))
    return (left > right) - (left < right)  # type: ignore[operator]  # both of one type by now


def _order_of_doubles(left: float, right: float) -> int:
    """Java's Double.compareTo: NaN is above all and equal to itself, and -0.0 is below 0.0.

    To Python NaN is not equal to itself, and both zeros are equal.
    """
    a, b = (
        (math.isnan(each), 0.0 if math.isnan(each) else each, math.copysign(1, each))
        for each in (left, right)
    )
    if a[0] and b[0]:
        return EQUAL
    return (a > b) - (a < b)


def _number(text: str, like: int | float) -> int | float:
    """The text as a number of the other's type. Raises Incomparable."""
    if isinstance(like, float):
        return _double(text)
    # nearly all values are so: too short to be out of an Integer's range, and without a sign
    if len(text) < 10 and text.isascii() and text.isdecimal():
        return int(text)
    # The size counts without the sign: the literal of -2147483648 is one above the largest Integer,
    # so it is a Long, and RocketMQ applies the minus to that.
    limit = MAX_INTEGER if abs(like) <= MAX_INTEGER else MAX_LONG
    # Java looks at UTF-16 units: a digit that takes two of them does not count as a digit. The
    # length comes first, because Python converts long texts in quadratic time.
    if len(text) > 40 or _INTEGER.fullmatch(text) is None or max(text) > "\uffff":
        raise Incomparable
    number = int(text)
    if not -limit - 1 <= number <= limit:
        raise Incomparable
    return number


def _double(text: str) -> float:
    """Java's Double.valueOf, which unlike Integer.valueOf trims its text. Raises Incomparable."""
    stripped = text.strip(_JAVA_SPACE)
    if _DOUBLE.fullmatch(stripped):
        return float(stripped.rstrip("fFdD") if stripped[-1] in "fFdD" else stripped)
    if _HEX_DOUBLE.fullmatch(stripped):
        # the exponent is decimal and always present, so a final f or d is not one of its digits
        return _hex_double(stripped.rstrip("fFdD"))
    raise Incomparable


def _hex_double(text: str) -> float:
    """Infinity for what is too large, as from float() for decimal text, and from Java for both."""
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf
