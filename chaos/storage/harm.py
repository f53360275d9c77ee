"""What a disk, or a person at it, can do to the files of a stopped store: one thing at a time.

Bits flip; files are cut, grow, get other content, disappear, become an older copy of themselves, or
change places with another. This file knows which files a store has, and nothing of starts.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.shared.errors import PenstockError, StoreDamaged
from penstock.shared.formats.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import AT_QUEUE_ID, AT_QUEUE_OFFSET, body_span
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run, write_run
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import load_sizes

# Where harm is done: most bytes are the log's, but every kind of file must have its share.
PLACES = (
    *("commitlog", "commitlog", "consumequeue", "consumequeue", "index", "checkpoint", "config"),
    *("penstock", "penstock/watermark", "penstock/queues", "penstock/run.json", "abort"),
    *("penstock/geometry.json", "penstock/deletions.json"),
)
_NONSENSE = (
    *(b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b'{"a":1}', b"[1,2,3]", b'"x"', b"7"),
    *(b'{"a":' + b"[" * 100_000, b'[{"a":' + b"[" * 100_000),
)


class Hit(NamedTuple):
    """What was done, to which file, and which log offsets were in it."""

    what: str
    file: Path
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.what}: {self.file.parent.name}/{self.file.name}, {self.start} to {self.end}"


class Scene(NamedTuple):
    """A store that is to be harmed, and an earlier state of it."""

    root: Path
    earlier: Path


def do_harm(scene: Scene, dice: random.Random) -> list[Hit]:
    """Do one thing; return what was hit: two files if they change places."""
    while True:
        kind = dice.choices(list(HARM), [share for _, share in HARM.values()])[0]
        hits = HARM[kind][0](scene, dice)
        if hits:
            return hits


def _flip(scene: Scene, dice: random.Random) -> list[Hit]:
    """Flip one bit; in a large file, of a byte in use or just past the used ones."""
    file = choose(scene.root, dice)
    if not file.stat().st_size:
        return []
    used = _used(file)
    at = dice.randrange(min(file.stat().st_size, used + used // 20 + 1))
    return [_flip_at(file, at, dice)]


def _flip_at(
    file: Path, at: int, dice: random.Random, bits: Sequence[int] = tuple(range(8))
) -> Hit:
    with file.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)[0]
        handle.seek(at)
        handle.write(bytes([byte ^ 1 << dice.choice(bits)]))
    return Hit("a flipped bit", file, at, at + 1)


def _cut(scene: Scene, dice: random.Random) -> list[Hit]:
    file = choose(scene.root, dice)
    size = file.stat().st_size
    if not size:
        return []
    at = dice.choice((0, dice.randrange(size), dice.randrange(min(size, _used(file) + 1))))
    os.truncate(file, at)
    return [Hit("cut" if at else "emptied", file, at, size)]


def _grow(scene: Scene, dice: random.Random) -> list[Hit]:
    file = choose(scene.root, dice)
    size = file.stat().st_size
    more = dice.choice((bytes, dice.randbytes))(dice.randint(1, 5000))
    with file.open("ab") as handle:
        handle.write(more)
    return [Hit("grown", file, size, size + len(more))]


def _overwrite(scene: Scene, dice: random.Random) -> list[Hit]:
    file = choose(scene.root, dice)
    size = file.stat().st_size
    if not size:
        return []
    at = dice.choice((0, dice.randrange(min(size, _used(file) + 1))))
    length = dice.choice((size - at, min(size - at, dice.randint(1, 9000))))
    zeros = dice.random() < 0.5
    with file.open("r+b") as handle:
        handle.seek(at)
        handle.write(bytes(length) if zeros else dice.randbytes(length))
    return [Hit("zeroed" if zeros else "garbage", file, at, at + length)]


def _delete(scene: Scene, dice: random.Random) -> list[Hit]:
    file = choose(scene.root, dice)
    size = file.stat().st_size
    if file.parent.parent.parent.name == "consumequeue" and dice.random() < 0.3:
        shutil.rmtree(file.parent)
    else:
        file.unlink()
    return [Hit("deleted", file, 0, size)]


def _age(scene: Scene, dice: random.Random) -> list[Hit]:
    """Replace a file with an older copy of it."""
    file = choose(scene.root, dice)
    older = scene.earlier / file.relative_to(scene.root)
    if not older.is_file():
        return []
    now, then = file.read_bytes(), older.read_bytes()
    differing = [
        at for at in range(0, max(len(now), len(then)), 512) if now[at:][:512] != then[at:][:512]
    ]
    if not differing:
        return []
    file.write_bytes(then)
    return [Hit("an older copy", file, differing[0], differing[-1] + 512)]


def _swap(scene: Scene, dice: random.Random) -> list[Hit]:
    """Exchange a file with another one of its kind."""
    file = choose(scene.root, dice)
    kind = file.parent
    if kind == scene.root:
        return []
    if kind.parent.parent.name == "consumequeue" and dice.random() < 0.7:
        kind = kind.parent.parent
    others = [path for path in sorted(kind.rglob("*")) if path.is_file() and path != file]
    if not others:
        return []
    other = dice.choice(others)
    spare = scene.root / "spare"
    os.rename(file, spare)
    os.rename(other, file)
    os.rename(spare, other)
    end = max(file.stat().st_size, other.stat().st_size)
    return [Hit("swapped", each, 0, end) for each in (file, other)]


def _talk_nonsense(scene: Scene, dice: random.Random) -> list[Hit]:
    """Make a file something other than JSON, or JSON without what is needed."""
    files = sorted(scene.root.rglob("*.json"))
    if not files:
        return []
    file = dice.choice(files)
    file.write_bytes(dice.choice(_NONSENSE))
    return [Hit("nonsense", file, 0, 0)]


def _bend_checkpoint(scene: Scene, dice: random.Random) -> list[Hit]:
    """Make words of the checkpoint say more, or less, than is true."""
    file = StorePaths(scene.root).checkpoint
    words = decode_checkpoint(file.read_bytes() if file.exists() else b"")
    fields = list(Checkpoint.__struct_fields__)
    bent = {field: getattr(words, field) for field in fields}
    for field in dice.sample(fields, dice.randint(1, len(fields))):
        change = dice.choice((-(1 << 62), -100_000, -5000, -1, 1, 5000, 100_000, 1 << 50, 1 << 62))
        bent[field] = max(-(1 << 63), min(bent[field] + change, (1 << 63) - 1))
    file.write_bytes(encode_checkpoint(Checkpoint(**bent)))
    return [Hit("bent words", file, 0, 40)]


def _bend_sizes(scene: Scene, dice: random.Random) -> list[Hit]:
    """Give some of the sizes other values, as of another store's files."""
    paths = StorePaths(scene.root)
    file = paths.geometry
    try:
        sizes = msgspec.to_builtins(load_sizes(paths))
    except StoreDamaged:
        return []
    if not sizes:
        return []
    for key in dice.sample(sorted(sizes), dice.randint(1, len(sizes))):
        sizes[key] = dice.choice((0, sizes[key] // 2, sizes[key] * 2, sizes[key] * 8))
    file.write_bytes(msgspec.json.encode(sizes))
    return [Hit("bent sizes", file, 0, 0)]


def _silence(scene: Scene, dice: random.Random) -> list[Hit]:
    """Flip a bit of the log, and leave no witness that says how far the log was on disk."""
    paths = StorePaths(scene.root)
    logs = sorted(paths.commit_log.iterdir())
    file = dice.choice(logs) if logs else None
    if file is None or not _used(file):
        return []
    return [_flip_at(file, dice.randrange(_used(file)), dice), *_unwitness(scene, dice)]


def _unwitness(scene: Scene, dice: random.Random) -> list[Hit]:
    """Leave nothing that says how far the log was on disk."""
    paths, hits = StorePaths(scene.root), []
    for witness in (paths.checkpoint, paths.watermark):
        older = scene.earlier / witness.relative_to(scene.root)
        how = dice.choice(("deleted", "emptied", "zeroed", "an older copy"))
        if how == "deleted":
            witness.unlink(missing_ok=True)
        elif how == "an older copy" and older.is_file():
            shutil.copyfile(older, witness)
        else:
            witness.write_bytes(bytes(4096) if how == "zeroed" else b"")
        hits.append(Hit(how, witness, 0, 4096))
    return hits


def _strip(scene: Scene, dice: random.Random) -> list[Hit]:
    """Remove queues, index and all that says how far the log went, as a person would who copies a
    store and knows that the log can restore them; and flip a bit of the log."""
    paths = StorePaths(scene.root)
    hits = _silence(scene, dice)
    if not hits:
        return []
    files = [path for part in (paths.consume_queue, paths.index) for path in part.rglob("*")]
    for file in (paths.known_queues, *files):
        if file.is_file():
            hits.append(Hit("deleted", file, 0, file.stat().st_size))
            file.unlink()
    return hits


def _shorten(scene: Scene, dice: random.Random) -> list[Hit]:
    """Remove a file of a queue, or fill it with zeros."""
    paths = sorted(StorePaths(scene.root).consume_queue.glob("*/*/*"))
    files = [path for path in paths if path.is_file()]
    if not files:
        return []
    file = dice.choice(files)
    size = file.stat().st_size
    if dice.random() < 0.5:
        file.unlink()
        return [Hit("deleted", file, 0, size)]
    file.write_bytes(bytes(size))
    return [Hit("zeroed", file, 0, size)]


def _forget(scene: Scene, dice: random.Random) -> list[Hit]:
    """Remove the end of a queue, and what the list says of it, or of all queues."""
    queues = sorted(
        path for path in StorePaths(scene.root).consume_queue.glob("*/*") if path.is_dir()
    )
    known = StorePaths(scene.root).known_queues
    if not queues or not known.is_file():
        return []
    queue = dice.choice(queues)
    name = str(queue.relative_to(queue.parent.parent)).encode()
    content, files = known.read_bytes(), sorted(queue.iterdir())
    gone = files[-1:] if dice.random() < 0.7 else files
    hits = [Hit("deleted", each, 0, each.stat().st_size) for each in gone]
    for each in gone:
        each.unlink()
    bent = content.replace(name + b" 0", name + b" 1")
    known.write_bytes(dice.choice((bent, bent, b"", content[: len(content) // 2])))
    return [*hits, Hit("forgotten", known, 0, len(content))]


def _misplace(scene: Scene, dice: random.Random) -> list[Hit]:
    """Flip a bit of a record's queue offset, queue id or topic, so that it may name another
    message's slot. In half of the cases no witness is left, so that the whole log is dispatched
    again; or the files of the queue that it then names are removed, so that the log restores
    them."""
    try:
        with StoreDirectory(scene.root) as store:
            records = [
                (at, size, len(decode_record(record).topic))
                for at, found, size, record, _ in store.scan_log()
                if found is Kind.RECORD
            ]
            position, size, topic_bytes = dice.choice(records) if records else (-1, 0, 0)
            files = [each for each in store.segments if each.base <= position < each.end]
    except PenstockError:
        return []  # earlier harm leaves nothing to read
    if not files:
        return []
    at = position - files[0].base
    body_at, body_bytes = body_span(files[0].path.read_bytes(), at)
    # the topic's last byte; one byte for its length precedes the topic
    topic_end = body_at + body_bytes + topic_bytes
    fields = {"queue offset": at + AT_QUEUE_OFFSET + 7, "queue id": at + AT_QUEUE_ID + 3}
    what, byte = dice.choice([*fields.items(), ("topic", topic_end)])
    # bits 7 and 5 turn the topic's last byte into one that no topic may have
    bits = dice.choice((range(8), (5, 7))) if what == "topic" else range(8)
    hit = _flip_at(files[0].path, byte, dice, bits)._replace(what=f"a flipped bit of a {what}")
    hits = [hit, *(_unwitness(scene, dice) if dice.random() < 0.5 else [])]
    if what == "topic" or dice.random() < 0.5:
        return hits
    named = decode_record(files[0].path.read_bytes()[at : at + size])
    queue = StorePaths(scene.root).queue(named.topic, named.queue_id)
    for each in sorted(queue.iterdir()) if queue.is_dir() else ():
        hits.append(Hit("deleted", each, 0, each.stat().st_size))
        each.unlink()
    return hits


def _lead_elsewhere(scene: Scene, dice: random.Random) -> list[Hit]:
    """Make run.json name the directory of another store's run, one that is no run's, or a link to
    one that looks like its own."""
    run = read_run(StorePaths(scene.root))
    if run is None:
        return []
    others, another_run = others_directories(scene.root)
    for directory, store in ((others, scene.root), (another_run, scene.earlier)):
        directory.mkdir(exist_ok=True)
        (directory / "kept").write_bytes(b"somebody's")
        (directory / "store").write_bytes(bytes(store.resolve()))
    link = others.with_name("penstock-0123456789abcdef")
    if not link.is_symlink():
        link.symlink_to(others)
    elsewhere = dice.choice((others, another_run, link))
    write_run(StorePaths(scene.root), msgspec.structs.replace(run, directory=str(elsewhere)))
    return [Hit("led elsewhere", StorePaths(scene.root).run, 0, 0)]


def others_directories(root: Path) -> tuple[Path, Path]:
    """Directories that no broker of the store may touch; the second looks like a run's."""
    return root.with_name("of-others"), root.with_name("penstock-fedcba9876543210")


def _make_abort(scene: Scene, dice: random.Random) -> list[Hit]:
    file = StorePaths(scene.root).abort
    file.write_bytes(dice.choice((b"", b"0", b"4711", b"x" * 30)))
    return [Hit("made", file, 0, 0)]


# what can be done, and with which weight
HARM: dict[str, tuple[Callable[[Scene, random.Random], list[Hit]], int]] = {
    "flip": (_flip, 30),
    "cut": (_cut, 10),
    "grow": (_grow, 4),
    "overwrite": (_overwrite, 14),
    "delete": (_delete, 12),
    "age": (_age, 14),
    "swap": (_swap, 6),
    "nonsense": (_talk_nonsense, 5),
    "checkpoint": (_bend_checkpoint, 8),
    "sizes": (_bend_sizes, 4),
    "silence": (_silence, 8),
    "strip": (_strip, 5),
    "shorten": (_shorten, 8),
    "forget": (_forget, 6),
    "misplace": (_misplace, 12),
    "elsewhere": (_lead_elsewhere, 6),
    "abort": (_make_abort, 3),
}


def choose(root: Path, dice: random.Random) -> Path:
    """One of a store's files, each place as often as the others."""
    while True:
        place = root / dice.choice(PLACES)
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        if files:
            return dice.choice(files)


def _used(file: Path) -> int:
    """The length up to the last byte that is not zero."""
    return len(file.read_bytes().rstrip(b"\0"))
