"""SQL92 filters in RocketMQ's grammar: text to a filter that says whether a message matches.

    or          and ("OR" and)*
    and         equality ("AND" equality)*
    equality    comparison ("=" comparison | "<>" comparison | "IS" ["NOT"] "NULL")*
    comparison  unary (("<" | "<=" | ">" | ">=") unary | ["NOT"] test)*
    test        "BETWEEN" unary "AND" unary | "IN" "(" text ("," text)* ")"
                | ("CONTAINS" | "STARTSWITH" | "ENDSWITH") text
    unary       ("+" | "-" | "NOT") unary | literal | property | "(" or ")"

Words are read in either case, names of properties as they are written. NOT binds closer than a
comparison: NOT (a = 1) needs its parentheses. In a text, '' is one quote. `-- to the end of the
line` and `/* */` are comments. RocketMQ stops reading where an expression is complete and ignores
what follows; here that is an error, because it is always a mistake.

Any consumer may send an expression, so its length, nesting and depth are limited before anything is
built from it: otherwise it could reach Python's own recursion limit somewhere in the reader.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.shared.errors import FilterError
from penstock.shared.filters.sql92_nodes import (
    MAX_LONG,
    Get,
    Incomparable,
    Node,
    between,
    constant,
    equal,
    is_null,
    junction,
    negation,
    negative,
    not_between,
    one_of,
    ordered,
    property_of,
    text_test,
    truth,
)

# The reader parses filters between pulls, while all its other consumers wait.
MAX_CHARACTERS = 8192
# How deep parentheses, signs and NOT may be nested. A parenthesis takes the parser through every
# rule of the grammar again, so a level can cost several Python frames.
MAX_NESTING = 48
# The hint where there is nothing more exact to say.
SYNTAX = "write it as in: amount > 100 AND region IN ('eu', 'us') AND TAGS IS NOT NULL"

# The first alternative that fits is taken, so their order matters: a double begins like an integer,
# `--` and `<=` like shorter signs. A line comment needs the end of its line: without one `--` is
# two minus signs.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*.*?\*/)
    |(?P<double>\d+\.\d*(?:E[+-]?\d+)?|\.\d+(?:E[+-]?\d+)?|\d+E[+-]?\d+)
    |(?P<integer>0|[1-9]\d*L?)
    |(?P<text>'(?:''|[^'])*')
    |(?P<word>[A-Z_$][A-Z0-9_$]*)
    |(?P<sign><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL,
)
_RESERVED = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL")) | {
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
}
# Python's operators: `ordered` applies them to numbers, or to the outcome of a comparison and 0.
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_LITERALS = {"TRUE": True, "FALSE": False, "NULL": None}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Sql92:
    """A compiled filter. Properties are those of a message, including TAGS, KEYS and the like.

    It keeps no state between messages, so all pulls with its expression share one.
    """

    def __init__(self, expression: str, root: Node) -> None:
        self.expression = expression
        self._evaluate = root.evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches. Raises nothing."""
        return self.matches_by(properties.get)

    def matches_by(self, get: Get) -> bool:
        """The same with a function that looks properties up by name."""
        try:
            # not its truth value: NULL does not match, and neither does a text
            return self._evaluate(get) is True
        except Incomparable:
            return False


def compile_sql92(expression: str) -> Sql92:
    """The filter. Raises FilterError, which names the place.

    The length is checked before the text is split into tokens, so a refusal costs no parse.
    """
    if len(expression) > MAX_CHARACTERS:
        raise FilterError(
            f"the filter is longer than {MAX_CHARACTERS} characters", len(expression), "shorten it"
        )
    return Sql92(expression, _Parser(expression).whole())


class _Token(NamedTuple):
    kind: str  # a reserved word or a sign itself, else text, integer, double, word or end
    text: str
    at: int


def _tokens(expression: str) -> list[_Token]:
    """All tokens without spaces and comments, and one of the kind "end" after the last.

    So the parser may look at the next token at any time. Raises FilterError.
    """
    found, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise _error(
                "the filter has a character that begins no word, number, 'text' or sign",
                expression,
                at,
            )
        kind, text = str(match.lastgroup), match[0]
        if kind == "sign" or (kind == "word" and text.upper() in _RESERVED):
            kind = text.upper()
        if kind != "space":
            found.append(_Token(kind, text, at))
        at = match.end()
    found.append(_Token("end", "", at))
    return found


def _error(what: str, expression: str, at: int, hint: str = "") -> FilterError:
    # a short piece, because the whole expression may have 8192 characters
    near = expression[at : at + 20]
    where = f"at character {at + 1}, {near!r}" if near else "at its end"
    return FilterError(what, where, hint or SYNTAX)


class _Parser:
    """One expression, read from left to right, with a method for each rule of the grammar above.

    No rule backtracks: the next token alone says how to go on.
    """

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._next = 0
        self._nesting = 0

    def whole(self) -> Node:
        """The root, which yields TRUE, FALSE or NULL. Raises FilterError. Call it once."""
        root = self._build(truth, self._or())
        if self._kind != "end":
            raise self._wrong("the filter goes on behind a complete expression")
        return root

    @property
    def _kind(self) -> str:
        return self._tokens[self._next].kind

    def _wrong(self, what: str) -> FilterError:
        return _error(what, self._expression, self._tokens[self._next].at)

    def _takes(self, *kinds: str) -> str:
        """If the next token is of one of these kinds, consume it and return its kind; else ""."""
        kind = self._kind
        if kind not in kinds:
            return ""
        self._next += 1
        return kind

    def _needs(self, kind: str, before: str) -> str:
        """Consume a token of this kind, or raise FilterError. Returns its text."""
        token = self._tokens[self._next]
        if not self._takes(kind):
            raise self._wrong(f"{kind} is missing behind {before}")
        return token.text

    def _build(self, make: Callable[..., Node], *arguments: object) -> Node:
        """Make a node. Its error is raised with the place of the last token that was read."""
        at = self._tokens[self._next - 1].at if self._next else 0
        try:
            return make(*arguments)
        except FilterError as error:
            raise _error(error.what, self._expression, at, error.hint) from None

    def _or(self) -> Node:
        # The parts are collected and joined once: one junction of all of them is one level deep.
        nodes = [self._and()]
        while self._takes("OR"):
            nodes.append(self._and())
        return self._build(junction, nodes, True)

    def _and(self) -> Node:
        nodes = [self._equality()]
        while self._takes("AND"):
            nodes.append(self._equality())
        return self._build(junction, nodes, False)

    def _equality(self) -> Node:
        # From left to right, as in RocketMQ: a = 5 = TRUE asks whether (a = 5) is TRUE.
        node = self._comparison()
        while sign := self._takes("=", "<>", "IS"):
            if sign == "IS":
                negated = bool(self._takes("NOT"))
                self._needs("NULL", "IS")
                node = self._build(is_null, node)
            else:
                negated = sign == "<>"
                node = self._build(equal, node, self._comparison())
            # <> is NOT of =, with its one-sided NULL: a <> b is TRUE where only b is absent
            node = self._build(negation, node) if negated else node
        return node

    def _comparison(self) -> Node:
        node = self._unary()
        while True:
            if sign := self._takes(*_ORDERS):
                node = self._build(ordered, node, self._unary(), _ORDERS[sign])
                continue
            # After an operand NOT can only belong to a test; before one it is read by _unary.
            negated = bool(self._takes("NOT"))
            test = self._takes("BETWEEN", "IN", *_TEXT_TESTS)
            if test == "BETWEEN":
                # not a whole condition, which would take the AND between the bounds as its own
                low = self._unary()
                self._needs("AND", "BETWEEN and its first number")
                make = not_between if negated else between
                node = self._build(make, node, low, self._unary())
            elif test == "IN":
                node = self._build(one_of, node, self._texts(), negated)
            elif test:
                part = self._text(test)
                node = self._build(text_test, node, _TEXT_TESTS[test], part, negated)
            elif negated:
                raise self._wrong("NOT is not followed by a condition, BETWEEN, IN or CONTAINS")
            else:
                return node

    def _texts(self) -> list[str]:
        # RocketMQ accepts neither numbers nor an empty list here
        self._needs("(", "IN")
        texts = [self._text("(")]
        while self._takes(","):
            texts.append(self._text(","))
        self._needs(")", "the last text")
        return texts

    def _text(self, before: str) -> str:
        return self._needs("text", before)[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        # counted where every recursion passes: at parentheses, signs and NOT
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self._wrong(f"the filter is nested more than {MAX_NESTING} deep")
        if self._takes("+"):
            node = self._unary()
        elif self._takes("-"):
            node = self._build(negative, self._unary())
        elif self._takes("NOT"):
            node = self._build(negation, self._unary())
        elif self._takes("("):
            node = self._or()
            self._needs(")", "what ( began")
        else:
            node = self._operand()
        # not in a `finally`: after an error the whole parser is dropped
        self._nesting -= 1
        return node

    def _operand(self) -> Node:
        token = self._tokens[self._next]
        if not self._takes("text", "integer", "double", "word", *_LITERALS):
            raise self._wrong("a property, a text or a number is missing")
        if token.kind == "text":
            return constant(token.text[1:-1].replace("''", "'"))
        if token.kind == "word":
            return property_of(token.text)
        if token.kind in _LITERALS:
            return constant(_LITERALS[token.kind])
        return constant(self._number(token))

    def _number(self, token: _Token) -> int | float:
        if token.kind == "integer":
            # An L changes nothing: the size alone decides between Integer and Long. The length
            # comes first, because int() of thousands of digits raises a ValueError.
            digits = token.text.rstrip("lL")
            if len(digits) < 20 and int(digits) <= MAX_LONG:
                return int(digits)
        elif 0 < float(token.text) < math.inf:
            return float(token.text)
        raise _error(
            "a number is above 2^63 - 1, or a Double that is not above 0",
            self._expression,
            token.at,
            "RocketMQ takes no 0.0 either: write 0",
        )
