"""What an error's hint says: the nearest existing names, and commands as they can be typed.

Functions on names and paths; only `look_at` touches the file system. Their texts are limited, and
so is the work for them: a broker may have 10,000 topics, and a client may ask for missing ones as
fast as it can, so a hint that compared all names would be a way to stop the broker.

Paths in commands are absolute and quoted: users type the command in another directory than the
broker's.
"""

from __future__ import annotations

import os
import shlex
from bisect import bisect
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from os.path import commonprefix
from pathlib import Path

from penstock.shared.errors import QueueNotFound, TopicNotFound
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, MAX_RETRY_TOPIC_BYTES, is_group_topic

# A hint names this many near names; twice as many if no name is near.
_TOLD = 3
# Comparing letter by letter is quadratic in a name's length. So of many names only the alphabetical
# neighbours are looked at, and only the likeliest of these are compared.
_LOOKED_AT, _COMPARED = 1000, 12


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that may have been meant, the nearest first; a few at most."""
    import difflib  # here: a client that makes no mistake starts sooner without it

    if len(name) > MAX_RETRY_TOPIC_BYTES:
        return []  # nothing has such a name, and each comparison would read all of it
    names = sorted(known)
    first = max(0, bisect(names, name) - _LOOKED_AT // 2)
    around = names[first : first + _LOOKED_AT]
    likely = nlargest(_COMPARED, around, lambda each: _likeness(name, each))
    # ignoring case, because "Orders" for "orders" is the likeliest mistake of all
    folded = {each.casefold(): each for each in likely}
    return [folded[near] for near in difflib.get_close_matches(name.casefold(), folded, _TOLD)]


def _likeness(name: str, other: str) -> int:
    """How similar two names are at a glance: common beginning and end, less the difference in
    length. Linear in the names' length, so it may run for a thousand of them."""
    lead = len(commonprefix((name, other)))
    tail = len(commonprefix((name[::-1], other[::-1])))
    return 2 * min(lead + tail, len(name)) - abs(len(name) - len(other))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The existing names, as a sentence: the near ones, or else the first few."""
    known = list(known)
    if near := nearest(name, known):
        return f"Did you mean {' or '.join(near)}?"
    return f"There are: {_some(known)}" if known else "There is none"


def _some(names: list[str]) -> str:
    more = len(names) - 2 * _TOLD
    return ", ".join(names[: 2 * _TOLD]) + (f" and {more} more" if more > 0 else "")


def other_topics(topic: str, known: Iterable[str]) -> str:
    """The topics that exist instead of this one, the nearest first; without groups' own topics."""
    # a misspelt name never means a retry topic, and these would crowd out the user's own
    names = sorted(each for each in known if not is_group_topic(each))
    if not names:
        return "there is no topic yet"
    near = nearest(topic, names)
    asked = f"Did you mean {near[0]}? " if near else ""
    rest = [each for each in islice(names, 3 * _TOLD) if each not in near]
    shown = [*near, *rest][: 2 * _TOLD]
    more = len(names) - len(shown)
    return f"{asked}There are: {', '.join(shown)}" + (f" and {more} more" if more else "")


def topic_hint(topic: str, known: Iterable[str], store: Path) -> str:
    """What to do about a topic that a broker does not have: use another, or create it."""
    create = f"penstock topics create {shlex.quote(topic)} --store {quoted(store)}"
    return f"{other_topics(topic, known)}; to create it: {create}"


def no_such_topic(topic: str, hint: str) -> TopicNotFound:
    """The error for a topic that does not exist."""
    return TopicNotFound("there is no topic of this name", topic, hint)


def no_such_queue(topic: str, queue: int, count: int, store: Path | str) -> QueueNotFound:
    """The error for a queue that a topic with `count` queues does not have.

    An empty `store` means that the path is not known: a remote client is not told it.
    """
    there = f"it has queues 0 to {count - 1}" if count > 1 else f"it has {count} queue, 0"
    if 0 <= queue < MAX_QUEUES_PER_TOPIC:
        command = f"penstock topics create {shlex.quote(topic)} --queues {queue + 1}"
        there += f"; for more: {command} --store {quoted(store) if store else 'STORE'}"
    return QueueNotFound(f"topic {topic} has no such queue", queue, there)


def quoted(path: Path | str) -> str:
    """A path as a word of a command that may be typed anywhere."""
    return shlex.quote(str(Path(path).absolute()))


def verify(path: Path | str | None) -> str:
    """See what is wrong with the store that has this path, or at it; None: it is not known."""
    store = "STORE" if path is None else quoted(store_of(path))
    return f"see what is wrong: penstock store verify {store}"


def rebuild(path: Path | str) -> str:
    """Make queues and index again, for the store at this path or around it."""
    return (
        f"stop the broker and make the queues anew: penstock store rebuild {quoted(store_of(path))}"
    )


def rebuild_index(path: Path | str) -> str:
    """Make the index again, for the store at this path or around it."""
    return f"penstock store rebuild {quoted(store_of(path))} --index"


def repair_command(path: Path | str) -> str:
    """Repair the store at this path or around it."""
    return f"penstock store repair {quoted(store_of(path))} --apply"


def repair(path: Path | str) -> str:
    """The same as a sentence. Without --apply the command changes nothing."""
    return f"{repair_command(path)} (without --apply it says what it would do)"


def move_away(*paths: Path | str) -> str:
    """Move files out of the way."""
    return " && ".join(f"mv {quoted(path)} {quoted(f'{path}.broken')}" for path in paths)


def look_at(path: Path | str) -> str:
    """See who may use a file, or who may create it if it is missing."""
    path = Path(path).absolute()
    # the nearest parent that exists: `ls` of a path that is missing would only repeat the error
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    return f"look at the disk, and at who may write there: ls -ld {quoted(there)}"


def store_of(path: Path | str) -> Path:
    """The directory of the store whose log, queues or index contain this path; else the path."""
    path = Path(path)
    for each in (path, *path.parents):
        if each.name in ("commitlog", "consumequeue", "index"):
            return each.parent
    return path
