"""The compiled loops look at nothing beside the bytes they were given, whatever these are.

Each loop runs in a process of its own, on bytes that end where unreadable memory begins, or begin
where it ends: a byte too many is a SIGSEGV, whatever happens to be there. What the loops make of
the bytes is in test_native_loops; `bytes` objects cannot be put to such a place.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from signal import SIGSEGV

import pytest

from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import Checksum, complete_prop_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import RANGE, TIMER, PlainRules, Stamp

pytestmark = pytest.mark.takes(20)

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")
verifier = pytest.importorskip("penstock.maintenance.verify_loops.compiled", reason="was not built")

V4, V6 = pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)
PROPERTIES = b"TAGS\x01t\x02KEYS\x01a b\x02UNIQ_KEY\x010A\x02DELAY\x013\x02"
PROT_NONE = 0  # of Linux; mmap has not this one


class Fence:
    """Memory between two pages that nobody may touch."""

    def __init__(self, room: int = 4 * mmap.PAGESIZE) -> None:
        self._memory = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (start, start + mmap.PAGESIZE + room):
            if libc.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.inside = memoryview(self._memory)[mmap.PAGESIZE : mmap.PAGESIZE + room]

    def last(self, raw: bytes | int) -> memoryview:
        """The bytes, or this many zeros, flush against the fence after them."""
        return self._put(raw, len(self.inside) - _size(raw))

    def first(self, raw: bytes | int) -> memoryview:
        """The same, with the fence before them."""
        return self._put(raw, 0)

    def both(self, raw: bytes | int) -> Iterator[memoryview]:
        yield self.last(raw)
        yield self.first(raw)

    def _put(self, raw: bytes | int, at: int) -> memoryview:
        view = self.inside[at : at + _size(raw)]
        view[:] = bytes(raw)
        return view


def _size(raw: bytes | int) -> int:
    return raw if isinstance(raw, int) else len(raw)


def record(topic: str, properties: bytes, born: bytes, store: bytes, crc: bool = False) -> bytes:
    raw = bytearray(
        encode_record(
            Record(
                topic,
                b"body" * 5,
                with_prop_crc_room(properties, crc),
                born_host=born,
                store_host=store,
            )
        )
    )
    if crc:
        complete_prop_crc(raw, 0, len(raw))
    return bytes(raw)


RECORDS = [
    record(topic, properties, born, store, crc)
    for topic, properties in (("a", b""), ("a", PROPERTIES), ("t" * 130, b"K"))
    for born, store in ((V4, V4), (V6, V4), (V6, V6))
    for crc in (False, True)
]


WHOLE = RECORDS[0]


def with_number(raw: bytes, at: int, size: int, number: int) -> bytes:
    changed = bytearray(raw)
    changed[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "big")
    return bytes(changed)


def lying(raw: bytes) -> Iterator[bytes]:
    """A record, cut anywhere, and its lengths made to lead to about where the bytes end."""
    body_at = 88 + 12 * (raw[39] >> 4 & 1) + 12 * (raw[39] >> 5 & 1)
    wide = 1 + (raw[7] == 0xAB)
    body = int.from_bytes(raw[body_at - 4 : body_at], "big")
    topic_at = body_at + body + wide
    for size in range(len(raw) + 1):
        cut = raw[:size]
        yield cut
        if size < 91:
            continue
        for more in (-1, 0, 1, 2, 3, 4):
            yield with_number(cut, 0, 4, size + more)
        whole = with_number(cut, 0, 4, size)
        for less in range(-2, 6):
            yield with_number(whole, body_at - 4, 4, size - body_at - less)
            if topic_at <= size:
                longer = with_number(whole, topic_at - wide, wide, size - topic_at - less)
                yield longer
                room = size - less - 2
                if topic_at <= room <= size - 2:  # one whose lengths add up
                    yield with_number(longer, room, 2, less)
        # of the properties as many as there is room for
        end = topic_at + int.from_bytes(raw[topic_at - wide : topic_at], "big")
        if end + 2 <= size:
            yield with_number(whole, end, 2, size - end - 2)


def lies() -> Iterator[bytes]:
    """Alone, and after a record that is whole."""
    for each in RECORDS:
        yield from lying(each)
    for each in (RECORDS[0], RECORDS[6]):
        after = with_number(each, 28, 8, len(WHOLE))
        yield from (WHOLE + lie for lie in lying(after))


# --- what is run, each in a process of its own ---


def crc32(fence: Fence) -> None:
    for size in range(600):
        for view in fence.both(size):
            assert native.crc32(view) == native.crc32(view, True)


def check_frame(fence: Fence) -> None:
    for raw in lies():
        for view in fence.both(raw):
            for topic in (b"a", b"t" * 130, b"a" * 4000):
                with contextlib.suppress(Exception):
                    native.check_frame(view, [(b"a", 0, 1), (topic, 0, 1)], 1 << 30)
                with contextlib.suppress(Exception):
                    native.check_frame(view, [(topic, 0, 1)], 1 << 30)
    for each in RECORDS:
        shape = Shape(20 if each[39] & 0x20 else 8)
        topic = b"a" if each[7] == 0xA7 else b"t" * 130
        assert native.check_frame(fence.last(each), [(topic, 0, 1)], 1 << 30, 1 << 30, shape)


def check_properties(fence: Fence) -> None:
    for raw in lies():
        for view in fence.both(raw):
            for starts in ([0, len(WHOLE), len(raw)], [len(raw), 0], [-91, 0], [len(raw) - 91, 0]):
                for prop_crc in (False, True):
                    with contextlib.suppress(Exception):
                        native.check_properties(view, starts, prop_crc)


def put_stamped(fence: Fence) -> None:
    other = Fence()
    for raw in RECORDS:
        for host in (V4, V6):
            size = len(raw)
            for starts in ([0, 91], [0, size], [0, size + 1], [1, size], [0, 60, 151], [-91, 0]):
                for target, frame in zip(
                    other.both(starts[-1] - starts[0]), fence.both(raw), strict=True
                ):
                    stamp = Stamp(1, host, bool(len(raw) % 2))
                    with contextlib.suppress(ValueError):
                        native.put_stamped(
                            target, frame, starts, [7] * (len(starts) - 1), 4096, stamp
                        )
        made = other.last(len(raw))
        native.put_stamped(made, fence.last(raw), [0, len(raw)], [7], 4096, Stamp(1, V4, True))
        assert made[20:28] == (7).to_bytes(8, "big")


def dispatch(fence: Fence) -> None:
    found = 0
    for raw in lies():
        for view in fence.both(raw):
            found += native.dispatch(view, 0, native.QueueNumbers(), (1000,), True)[1]
    assert found > 200
    for each in RECORDS:
        assert native.dispatch(fence.last(each * 3), 0, native.QueueNumbers())[1] == 1


def record_starts(fence: Fence) -> None:
    found = 0
    for raw in lies():
        for view in fence.both(raw):
            for checksum in Checksum:
                found += len(native.record_starts(view, 0, checksum)) > 1
    assert found > 1000


def check(fence: Fence) -> None:
    """The verifier's, which is a module of its own."""
    found = 0
    for raw in lies():
        for view in fence.both(raw):
            for checksums in range(4):
                asked = view, 0, 1 << 40, checksums, array("q", [1000]), {}, True
                found += verifier.check(*asked).stop > 0
    assert found > 1000


def chain(fence: Fence) -> None:
    for size in (0, 19, 20, 39, 40, 20 * 40 - 1, 20 * 40):
        for view in fence.both(b"\xff" * size):
            slots = array("i", bytes(12))
            assert len(verifier.chain(view, 1, slots)) == size // 20 * 4


def messages(fence: Fence) -> None:
    found = 0
    for raw in lies():
        for view in fence.both(raw):
            for name in (b"UNIQ_KEY", b"D", b"\x02", b"n" * 5000):
                asked = view, (0, len(raw)), None, (0, 9), 1 << 20, name
                made, _, named = native.messages(*asked)
                found += named
                assert native.bodies(*asked)[2] == named
                assert len(native.part_starts(*asked[:4], name)[0]) == len(made)
                del made
    assert found > 1000


FIELDS = (
    *("queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp_ms"),
    *("store_timestamp_ms", "record", "stored_body", "_raw_topic", "_raw_properties", "body"),
)


def message(fence: Fence) -> None:
    for raw in lies():
        for view in fence.both(raw):
            made = native.Message(view, 1 << 20)
            for name in FIELDS:
                with contextlib.suppress(Exception):
                    getattr(made, name)


def pack(fence: Fence) -> None:
    maker = native.RecordMaker(V4, KeyOrigin("0A" * 10, 0), Shape(8, True))
    names, made = (b"\x01a", b"\x00\xc8" + b"t" * 200), 0
    for name in names:
        for draft in (b"", b"body", (b"body", PROPERTIES, 0, 0)):
            for size in range(800):
                for view in fence.both(size):
                    with contextlib.suppress(ValueError):
                        starts = maker.pack(view, [(name, 0, [draft] * 2, array("q", [1, 2]))])
                        made += starts[-1] == size
    assert made == 2 * 3 * 2, "each fits once to the last byte"


def timers(fence: Fence) -> None:
    properties = b"TIMER_OUT_MS\x019\x02REAL_TOPIC\x01t\x02REAL_QID\x011\x02UNIQ_KEY\x01K\x02"
    found, made = 0, 0
    for store, crc in ((V4, False), (V6, True)):
        for raw in lying(record("a", properties, store, store, crc)):
            for view in fence.both(raw):
                for size in (len(raw), len(raw) + 1, 91, 1 << 30):
                    asked = (view, 0)
                    found += len(native.timer_entries(ENTRY.pack(0, size, 0), *asked, 0, -1))
                    for timed in (False, True):
                        timer = TIMER.pack(9, 0, size, 0)
                        (copy,) = native.delayed_copies(timer, *asked, Shape(20, crc), timed, ())
                        made += copy is not None
    assert found and made


def gather(fence: Fence) -> None:
    segment = bytes(range(200))
    for view in fence.both(segment):
        for start in range(95, 105):
            for stop in range(start, 305):
                asked = [(view, 100, RANGE.pack(start, stop))]
                if start >= 100 and stop <= 300:
                    assert native.gather(asked) == segment[start - 100 : stop - 100]
                else:
                    with pytest.raises(ValueError):
                        native.gather(asked)


def row(queue: int, offset: int) -> bytes:
    return (
        queue.to_bytes(4, "little", signed=True)
        + offset.to_bytes(8, "little", signed=True)
        + b"e" * 20
    )


def put_entries(fence: Fence) -> None:
    other, put = Fence(), 0
    for known in range(4):
        for queue in (-(2**31), -1, 0, 1, 2, 3, 4, 2**31 - 1):
            for low, high, at in ((0, 3, 0), (0, 3, 1), (0, 2**62, 0), (5, 8, -1), (2, 9, 59)):
                table = array("q", [low, high, at] * known).tobytes()
                for windows, area in zip(fence.both(table), other.both(60), strict=True):
                    for offset in (-1, 0, 1, 2, 3, 5, 7, 8, 2**40, 2**62, -(2**63)):
                        with contextlib.suppress(ValueError):
                            put += not native.put_entries(row(queue, offset), windows, area)
    assert put > 50


def move_ends(fence: Fence) -> None:
    moved = 0
    for words in range(20):
        for view in fence.both(8 * words):
            for step in (0, 1, 2, 8, 2**62):
                for queue in (-(2**31), -1, 0, 1, 2, 9, 10, 18, 19, 20, 2**31 - 1):
                    with contextlib.suppress(ValueError):
                        native.move_ends(row(queue, 5), view, step)
                        moved += 1
    assert moved > 100


def record_fields(fence: Fence) -> None:
    other, topics = Fence(), Fence()
    found = 0
    for raw in lies():
        size = len(raw)
        for view in fence.both(raw):
            for start, length in ((0, size), (0, size + 1), (1, size), (-1, size), (size, 1 << 62)):
                for topic in (b"a", b"t" * 130):
                    for into in other.both(64):
                        named = [array("q", [each]) for each in (start, length, 0, 0, 0)]
                        ends = array("q", [len(topic)])
                        with contextlib.suppress(ValueError):
                            asked = tuple(named), topics.last(topic), ends, into
                            found += native.record_fields(view, *asked) < 0
    assert found > 5
    for room in range(130):
        for into in other.both(room):
            words = array("q", [0, 0])
            with contextlib.suppress(ValueError):
                native.record_fields(fence.last(100), (words,) * 5, topics.last(1), words, into)


def copy_bodies(fence: Fence) -> None:
    other = Fence()
    for size in (0, 1, 100):
        for view in fence.both(size):
            for at in (-1, 0, 1, size, size + 1, 1 << 62):
                for length in (-1, 0, 1, size, size - at, size - at + 1, 1 << 62):
                    for target in other.both(min(max(length, 0), 200) // 2 * 2):
                        words = [array("q", [each % (1 << 63)]) for each in (at, length, 0)]
                        with contextlib.suppress(ValueError):
                            native.copy_bodies(view, *words, target)
    for view in fence.both(b"123456789"):
        words = [array("q", [each]) for each in (0, 9, 0xCBF43926 & 0x7FFFFFFF)]
        assert native.copy_bodies(view, *words, other.last(9)) == -1


def cut_properties(fence: Fence) -> None:
    for raw in (b"", PROPERTIES, PROPERTIES[:-1], b"k\x01v\x02" * 70, b"\x02" * 9, b"\x01" * 9):
        for size in range(len(raw) + 1):
            for view in fence.both(raw[:size]):
                for at, length in ((0, size), (size, 0), (0, size + 1), (size, 1), (-1, 1)):
                    words = [array("q", [each]) for each in (at, length)]
                    with contextlib.suppress(ValueError):
                        native.cut_properties(view, *words, (b"KEYS", b"k"))
    words = [array("q", [each]) for each in (0, len(PROPERTIES))]
    assert native.cut_properties(fence.last(PROPERTIES), *words, (b"KEYS",)).values.startswith(b"t")


def json_lines(fence: Fence) -> None:
    made = 0
    for raw in lies():
        for view in fence.both(raw):
            for start in (0, -1, len(WHOLE), len(raw), len(raw) + 1, 1 << 62):
                made += len(native.json_lines(view, start, True, False)[0]) > 0
    assert made > 200


def cells(fence: Fence) -> None:
    made = 0
    for raw in lies():
        for view in fence.both(raw):
            for start in (0, -1, len(WHOLE), len(raw), len(raw) + 1, 1 << 62):
                made += len(native.cells(view, start, True, str)[0])
    assert made > 200


def client_frame(fence: Fence) -> None:
    """Whole frames, cut anywhere, and with lengths that lead to about where the bytes end."""
    rules = PlainRules(b"A\x01b\x02", True, 1 << 20)
    item = (30).to_bytes(4, "big") + bytes(12) + (4).to_bytes(4, "big") + b"body\0\4k\x01v\x02"
    taken = 0
    for lead, body in ((310, b""), (310, b"body"), (320, item * 2)):
        header = (
            b'{"code":%d,"extFields":{"a":"PG","b":"a","c":"T","d":"4","e":"0","f":"0","g":"1",'
            b'"h":"0","i":"UNIQ_KEY\\u00010A\\u0002","j":"0","k":"false","m":"false"},"flag":0}'
        ) % lead
        whole = (4 + len(header) + len(body)).to_bytes(4, "big")
        whole += len(header).to_bytes(4, "big") + header + body
        for size in range(len(whole) + 1):
            for more in (-1, 0, 1, 4):
                raw = with_number(whole[:size].ljust(8, b"\0"), 0, 4, max(size, 8) - 4 + more)
                for header_more in (-1, 0, 1, 1 << 20):
                    bent = with_number(raw, 4, 4, len(header) + header_more)
                    for view in fence.both(bent):
                        frame = native.ClientFrame(rules)
                        with contextlib.suppress(ValueError):
                            taken += bool(frame.take(view, 0, "x", V4, {"a": 1}, 2))
                        frame.pack()
        for at in range(len(whole) - len(body), len(whole)):
            for to in (0, 1, 22, 29, 31, 127, 128, 255):
                bent = with_number(whole, at, 1, to)
                for view in fence.both(bent):
                    taken += bool(native.ClientFrame(rules).take(view, 0, "x", V4, {"a": 1}, 2))
    assert taken > 50


LOOPS: list[Callable[[Fence], None]] = [
    *(crc32, check_frame, check_properties, put_stamped, dispatch, record_starts, messages),
    *(message, pack, timers, gather, put_entries, move_ends),
    *(record_fields, copy_bodies, cut_properties),
    *(json_lines, cells),
    client_frame,
    *(check, chain),
]


def beyond(fence: Fence) -> None:
    ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(fence.last(1))), 2)


def before(fence: Fence) -> None:
    ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(fence.first(1))) - 1, 1)


# --- the tests ---


def run(name: str) -> subprocess.CompletedProcess[str]:
    """A function of this file in a process of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, name],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("name", ["beyond", "before"])
def test_a_byte_beside_the_fence_ends_the_process(name: str) -> None:
    assert run(name).returncode == -SIGSEGV


@pytest.mark.parametrize("name", [each.__name__ for each in LOOPS])
def test_nothing_beside_the_bytes_is_looked_at(name: str) -> None:
    ended = run(name)
    assert ended.returncode == 0, ended.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]](Fence())
