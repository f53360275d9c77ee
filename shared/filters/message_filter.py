"""What a consumer wants of a topic: tags, by RocketMQ's `TagA || TagB`, or an SQL92 condition.

A queue entry has the hash of its message's tags, so the reader skips most other messages without
reading their records. Two tags can share a hash ("Aa" and "BB" do), so the client compares the tags
themselves in what a tag filter lets through.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.shared.errors import FilterError
from penstock.shared.formats.java_hash import string_hash
from penstock.shared.formats.properties import TAGS, decode_properties, find_property
from penstock.shared.formats.record_outline import raw_properties

if TYPE_CHECKING:
    # a client imports this and starts sooner without: only a broker compares codes
    import numpy as np
    import numpy.typing as npt

    from penstock.shared.filters.sql92_parser import Sql92

TAG, SQL92 = "TAG", "SQL92"
ALL = "*"
# Codes up to here are not hashes: they say where a consumequeue_ext has the message's details.
MAX_EXTENSION_ADDRESS = -(2**31) - 1

# Limit of some thousand tags. Up to SHORT_CHARACTERS an expression is parsed at once; a longer one
# waits for its turn, because the reader parses it between the pulls of all others.
MAX_TAGS_CHARACTERS = 32_768
SHORT_CHARACTERS = 256

_TAGS = TAGS.encode()
_BETWEEN_TAGS = "||"
_JAVA_SPACE = "".join(map(chr, range(33)))


class TagFilter:
    """Messages with one of these tags."""

    # As in RocketMQ the client decides, so the broker need not read the records at all.
    decided_by_broker = False

    def __init__(self, tags: frozenset[str]) -> None:
        self._tags = frozenset(tag.encode("utf-8", "replace") for tag in tags)
        self._hashes = sorted({string_hash(tag) for tag in tags})

    @cached_property
    def _codes(self) -> npt.NDArray[np.int32]:
        import numpy as np

        return np.array(self._hashes, dtype=np.int32)

    def may_match(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these queue entries' tags codes may belong to matching messages, as a mask.

        A hash is the low 32 bits of a code, as in RocketMQ. An extension address says nothing about
        the tags, so its message must be taken.
        """
        import numpy as np

        return np.isin(codes.astype(np.int32), self._codes) | (codes <= MAX_EXTENSION_ADDRESS)

    def matches(self, record: memoryview) -> bool:
        """Whether the record has one of the tags. The record must be whole and examined."""
        return find_property(raw_properties(record), _TAGS) in self._tags


class PropertyFilter:
    """Messages whose properties fulfil an SQL92 condition."""

    # Unlike with tags, nothing is left for the client to compare: it gets only what matches.
    decided_by_broker = True

    def __init__(self, condition: Sql92) -> None:
        self._condition = condition

    def may_match(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """All of them: an entry does not have the properties."""
        import numpy as np

        return np.ones(len(codes), dtype=np.bool_)

    def matches(self, record: memoryview) -> bool:
        """Whether the record's properties fulfil the condition. The record must be whole."""
        return self._condition.matches(decode_properties(raw_properties(record)))


Filter = TagFilter | PropertyFilter


def parse_tags(expression: str) -> TagFilter | None:
    """The filter of a tag expression; None for "*" and for "", which mean all messages.

    Raises FilterError for an expression without a tag, which could never match.
    """
    if expression in ("", ALL):
        return None
    if len(expression) > MAX_TAGS_CHARACTERS:
        raise FilterError(
            f"a tag expression has more than {MAX_TAGS_CHARACTERS} characters",
            len(expression),
            "subscribe to fewer tags, or to * and choose among the messages that come",
        )
    parts = (part.strip(_JAVA_SPACE) for part in expression.split(_BETWEEN_TAGS))
    tags = frozenset(part for part in parts if part)
    if not tags:
        raise FilterError(
            "the tag expression names no tag",
            repr(expression),
            'write * for all messages, or tags as in "TagA || TagB"',
        )
    return TagFilter(tags)


def parse_filter(expression_type: str, expression: str) -> Filter | None:
    """The filter of a subscription; None where it takes all messages. Raises FilterError."""
    if expression_type in ("", TAG):
        return parse_tags(expression)
    if expression_type == SQL92:
        # here: a client that filters by tags, or not at all, never loads the grammar
        from penstock.shared.filters.sql92_parser import compile_sql92

        return PropertyFilter(compile_sql92(expression))
    raise FilterError(
        "there is no such type of expression",
        repr(expression_type[:40]),
        f"choose {TAG} or {SQL92}",
    )


class KnownFilters:
    """Filters that the reader has already parsed or refused: the most recently used ones.

    Characters are limited as well as filters, because a parsed filter takes far more memory than
    its text. Refusals are kept too: a client that repeats a bad filter must not cost a parse each
    time.
    """

    def __init__(self, most: int = 128, most_characters: int = 128 << 10) -> None:
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self._known: OrderedDict[tuple[str, str], Filter | FilterError | None] = OrderedDict()

    def costs(self, expression_type: str, expression: str) -> bool:
        """Whether `get` would take long: up to some 30 ms."""
        if not SHORT_CHARACTERS < len(expression) <= MAX_TAGS_CHARACTERS:
            return False  # an expression beyond the limit is refused at once
        return (expression_type, expression) not in self._known

    def get(self, expression_type: str, expression: str) -> Filter | None:
        """Like `parse_filter`, but parses once. Raises FilterError each time for a refused one."""
        key = expression_type, expression
        # Refused by length or type alone, so caching would save no parse. And nothing of it is
        # kept, as either may be as large as a frame.
        if len(expression) > MAX_TAGS_CHARACTERS or expression_type not in ("", TAG, SQL92):
            return parse_filter(*key)
        if key in self._known:
            self._known.move_to_end(key)
        else:
            try:
                self._known[key] = parse_filter(*key)
            except FilterError as error:
                self._known[key] = error
            self._characters += len(expression)
            # Never drops what was just added: such an expression has at most a quarter of the
            # characters.
            while len(self._known) > self._most or self._characters > self._most_characters:
                self._characters -= len(self._known.popitem(last=False)[0][1])
        found = self._known[key]
        if isinstance(found, FilterError):
            # it is raised again and again, and would collect the frames of each time
            raise found.with_traceback(None)
        return found
