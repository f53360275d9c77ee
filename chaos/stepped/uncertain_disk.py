"""A disk after each event of a trace, and every state in which a power failure might leave it.

A disk is made of pieces, each of which has a value:

    (BYTES, file, n)    the nth 512 bytes of a file, which a disk writes whole, or not at all
    (SIZE, file, "")    a file's length
    (NAME, directory, name)   the file or directory that has this name; 0 for no file

An event changes pieces, or makes them certain. After a failure, a piece that has changed since it
was certain may have the value it had then, or any it has had since, whatever the others have.
The kernel reports a failed sync once. It may take the bytes for written from then on, and no sync
makes such a piece certain before it is written again.
Files have numbers above 0, directories below it; the root is -1. Only one rule ties names: a
directory has at most one, so two that have changed places are both old or both new.

This file knows nothing of what is stored, and nothing of how a trace is made.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import NamedTuple

SECTOR_BYTES = 512
BYTES, SIZE, NAME = "bytes", "size", "name"
ROOT = -1
_ZEROS = bytes(SECTOR_BYTES)

Piece = tuple[str, int, int | str]
Value = bytes | int
_NOTHING: dict[str, Value] = {BYTES: _ZEROS, SIZE: 0, NAME: 0}


class Event(NamedTuple):
    """One thing that happened to the disk: `what`, in words; the pieces that changed, and those
    that are certain now. With `fresh` the disk has only these. A sync of `missed` has failed."""

    what: str
    changes: tuple[tuple[Piece, Value], ...] = ()
    certain: tuple[Piece, ...] = ()
    fresh: bool = False
    missed: tuple[Piece, ...] = ()


class Image(NamedTuple):
    """One state of the disk: (path, content) of each file, None for a directory, sorted."""

    entries: tuple[tuple[str, bytes | None], ...]

    def digest(self) -> bytes:
        found = blake2b(digest_size=16)
        for path, content in self.entries:
            found.update(b"%d %d " % (len(path), -1 if content is None else len(content)))
            found.update(path.encode())
            found.update(content or b"")
        return found.digest()

    def replacing(self, old: bytes, new: bytes) -> Image:
        """The same state with `new` in the place of `old`, in all files."""
        return Image(tuple((path, raw and raw.replace(old, new)) for path, raw in self.entries))

    def write(self, target: Path) -> None:
        """Write it into an empty directory."""
        for path, content in self.entries:
            if content is None:
                os.mkdir(target / path)
                continue
            handle = os.open(target / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(handle, content)
            os.close(handle)


class UncertainDisk:
    """The certain pieces, and the values that the other pieces have had since, oldest first."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._certain: dict[Piece, Value] = {}
        self._since: dict[Piece, list[Value]] = {}
        # those of them that the kernel takes for written after a failed sync
        self._missed: set[Piece] = set()
        # names of directories that have changed places, which a disk does in one step
        self._tied: dict[Piece, Piece] = {}
        # per file the numbers of the sectors ever written; per directory the names
        self._parts: dict[int, set[int | str]] = {ROOT: set()}

    def take(self, event: Event) -> None:
        """Apply one event."""
        if event.fresh:
            self._forget()
        for piece, value in event.changes:
            kind, owner, part = piece
            if kind != SIZE:
                self._parts.setdefault(owner, set()).add(part)
            # the newest last
            self._since[piece] = [*self._since.pop(piece, ()), value]
            self._missed.discard(piece)
        exchanged = [
            piece for piece, value in event.changes if piece[0] == NAME and _is_directory(value)
        ]
        if len(exchanged) == 2 and not event.certain:
            first, second = exchanged
            self._tied |= {first: second, second: first}
        tied = [self._tied[piece] for piece in event.certain if piece in self._tied]
        for piece in chain(event.certain, tied):
            if piece in self._since:
                self._certain[piece] = self._since.pop(piece)[-1]
        self._missed.update(event.missed)
        if any(piece[0] == NAME for piece in event.certain):
            self._forget_nameless()

    def _forget_nameless(self) -> None:
        """Drop the pieces of files that can have no name after a failure: no state shows them."""
        named: set[Value] = {ROOT}
        for piece, value in self._certain.items():
            if piece[0] == NAME:
                named.add(value)
        for piece, values in self._since.items():
            if piece[0] == NAME:
                named.update(values)
        for piece in [piece for piece in self._since if piece[1] not in named]:
            del self._since[piece]
            self._missed.discard(piece)

    def newest(self, piece: Piece) -> Value:
        """The value that every process reads."""
        if piece in self._since:
            return self._since[piece][-1]
        return self._certain.get(piece, _NOTHING[piece[0]])

    def uncertain(self, owner: int, *kinds: str) -> list[Piece]:
        """The pieces of a file or directory that a sync covers."""
        return [each for each in self.all_uncertain() if each[1] == owner and each[0] in kinds]

    def all_uncertain(self) -> list[Piece]:
        """The pieces that reach the disk by themselves, given time."""
        return [piece for piece in self._since if piece not in self._missed]

    def missed(self, file: int, start: int, stop: int) -> list[Piece]:
        """The pieces of these sectors of a file that the kernel takes for written."""
        found: list[Piece] = [(BYTES, file, number) for number in range(start, stop)]
        return [piece for piece in found if piece in self._missed]

    def names(self, directory: int) -> dict[str, int]:
        """The names in a directory that every process sees."""
        found = {}
        for name in self._parts.get(directory, ()):
            child = self.newest((NAME, directory, name))
            if child:
                found[str(name)] = int(child)
        return found

    def count(self) -> int:
        """How many states of the disk there may be, not counting the rule for directories."""
        return prod(len(self._options(piece)) for piece in self._since)

    def live(self) -> Image:
        """The state of the disk when nothing is lost."""
        return self._image({piece: values[-1] for piece, values in self._since.items()})

    def images_of_youngest(self, few: int, dice: random.Random) -> Iterator[Image]:
        """Every state of the pieces that changed last, of as many of them as make at most `few`
        states; in each, the dice choose the older pieces."""
        young: list[Piece] = []
        states = 1
        for piece in reversed(self._since):
            states *= len(self._options(piece))
            if states > few:
                break
            young.append(piece)
        old = [piece for piece in self._since if piece not in young]
        for values in product(*map(self._options, young)):
            chosen = {piece: dice.choice(self._options(piece)) for piece in old}
            yield from self._possible({**chosen, **dict(zip(young, values, strict=True))})

    def some_images(self, count: int, dice: random.Random) -> Iterator[Image]:
        """Some of the states: nothing kept, all kept, and `count` random ones in between."""
        yield self._image({})
        yield self.live()
        for _ in range(count):
            yield self.any_image(dice)

    def any_image(self, dice: random.Random) -> Image:
        """A random state."""
        while True:
            share = dice.choice((0.1, 0.5, 0.9))
            chosen: dict[Piece, Value] = {}
            for piece, values in self._since.items():
                if dice.random() < share:
                    chosen[piece] = values[-1] if dice.random() < 0.7 else dice.choice(values)
            for image in self._possible(chosen):
                return image

    def _options(self, piece: Piece) -> list[Value]:
        found = [self._certain.get(piece, _NOTHING[piece[0]]), *self._since[piece]]
        return list(dict.fromkeys(found))

    def _possible(self, chosen: dict[Piece, Value]) -> Iterator[Image]:
        image = self._image(chosen)
        if image.entries is not _IMPOSSIBLE:
            yield image

    def _image(self, chosen: dict[Piece, Value]) -> Image:
        entries: list[tuple[str, bytes | None]] = []
        met = {ROOT}
        waiting = [(ROOT, "")]
        while waiting:
            directory, prefix = waiting.pop()
            for name in self._parts.get(directory, ()):
                child = self._value((NAME, directory, name), chosen)
                if not child:
                    continue
                path = f"{prefix}{name}"
                if not _is_directory(child):
                    entries.append((path, self._content(int(child), chosen)))
                    continue
                if child in met:
                    return Image(_IMPOSSIBLE)
                met.add(int(child))
                entries.append((path, None))
                waiting.append((int(child), f"{path}/"))
        return Image(tuple(sorted(entries)))

    def _content(self, file: int, chosen: dict[Piece, Value]) -> bytes:
        size = int(self._value((SIZE, file, ""), chosen))
        content = bytearray(size)
        for number in self._parts.get(file, ()):
            at = int(number) * SECTOR_BYTES
            if at < size:
                sector = self._value((BYTES, file, number), chosen)
                assert isinstance(sector, bytes)
                content[at : at + SECTOR_BYTES] = sector[: size - at]
        return bytes(content)

    def _value(self, piece: Piece, chosen: dict[Piece, Value]) -> Value:
        if piece in chosen:
            return chosen[piece]
        return self._certain.get(piece, _NOTHING[piece[0]])


_IMPOSSIBLE: tuple[tuple[str, bytes | None], ...] = (("", None),)


def _is_directory(value: Value) -> bool:
    return isinstance(value, int) and value < 0
