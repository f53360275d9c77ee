"""The gateway's loops: from what RocketMQ's clients send to one frame for the writer, and back
to their answers. Pure Python.

The twin of what `compiled` has under this name, and the reference for both; `active` chooses the
one that a process uses. `pure.plain` says what is plain.

    take, put -> pack -> answers; or parts, each a frame by itself

No object is made for a plain message on its way: a client's bytes become records, and of the
request only what its answer needs is kept.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.shared.loops.forms import Place, PlainRules, PlainSent
from penstock.shared.loops.pure.plain import plain_sent

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
# The fixed parts of an answer, between which go: opaque, ids, queue, queue offset, key.
Words = tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class _Request(NamedTuple):
    """One message or batch, and who gets the answer; if `is_put`, the caller makes the answer."""

    by: Any
    sent: PlainSent
    is_put: bool


class ClientFrame:
    """Requests of any connections, for one frame."""

    def __init__(self, rules: PlainRules) -> None:
        self._rules = rules
        # bytes of records, number of records, number of requests
        self.size = self.count = self.requests = 0
        # when the first request came; the caller sets it
        self.since_ms = 0
        # whether a request was left out because there was no room
        self.is_full = False
        # A queue's messages stand together, except batches: each of those is a run by itself.
        self._runs: list[list[_Request]] = []
        self._open: dict[tuple[str, int], list[_Request]] = {}
        self._is_packed = False

    def take(
        self,
        data: bytes | bytearray,
        at: int,
        by: Any,
        born_host: bytes,
        topics: Mapping[str, int],
        most: int,
    ) -> int:
        """Take the plain messages that come next from a connection, at most `most`. Returns where
        the first frame begins that was not taken: it is not plain, or not whole, or there is no
        room for it, or `most` were taken.

        `data` has frames with their lengths, and `topics` how many queues each topic has.
        """
        self._check_open()
        if not 0 <= at <= len(data):
            raise ValueError("frames begin inside their bytes")
        for _ in range(most):
            if len(data) - at < _LENGTH.size:
                break
            (size,) = _LENGTH.unpack_from(data, at)
            stop = at + _LENGTH.size + size
            # a length that no frame can have is refused by the code that splits frames
            if size < _LENGTH.size or stop > len(data):
                break
            sent = plain_sent(bytes(data[at + _LENGTH.size : stop]), born_host, self._rules)
            if sent is None or sent.queue_id >= topics.get(sent.topic, 0):
                break
            if not self._add(_Request(by, sent, False)):
                break
            at = stop
        return at

    def put(
        self,
        by: Any,
        topic: str,
        queue_id: int,
        records: bytes,
        sizes: Sequence[int],
        is_batch: bool,
    ) -> bool:
        """Take a request that was read elsewhere. Returns whether there is room."""
        self._check_open()
        if sum(sizes) != len(records):
            raise ValueError("records have the sizes that are said")
        return self._add(
            _Request(by, PlainSent(0, False, topic, queue_id, "", records, sizes, is_batch), True)
        )

    def _check_open(self) -> None:
        if self._is_packed:
            raise ValueError("the frame has been packed")

    def _add(self, request: _Request) -> bool:
        sent = request.sent
        size, count = self.size + len(sent.records), self.count + len(sent.sizes)
        # what does not fit into any frame gets one for itself
        if self.count and (size > self._rules.most_bytes or count > self._rules.most_records):
            self.is_full = True
            return False
        self.size, self.count, self.requests = size, count, self.requests + 1
        key = sent.topic, sent.queue_id
        if sent.is_batch:
            self._open.pop(key, None)
            self._runs.append([request])
        elif key in self._open:
            self._open[key].append(request)
        else:
            self._open[key] = [request]
            self._runs.append(self._open[key])
        return True

    def _all(self) -> Iterator[_Request]:
        return (request for run in self._runs for request in run)

    def pack(self) -> tuple[list[tuple[str, int, int, bool]], bytes]:
        """The runs, each with its topic, queue, number of records, and whether it is a batch; and
        all records. After this nothing can be taken."""
        self._is_packed = True
        runs = []
        for run in self._runs:
            sent = run[0].sent
            count = sum(len(request.sent.sizes) for request in run)
            runs.append((sent.topic, sent.queue_id, count, sent.is_batch))
        return runs, b"".join([request.sent.records for request in self._all()])

    def parts(self) -> list[ClientFrame]:
        """Each request in a frame of its own."""
        self.pack()
        parts = []
        for request in self._all():
            part = ClientFrame(self._rules)
            part.since_ms = self.since_ms
            part._add(request)
            parts.append(part)
        return parts

    def asked(self) -> list[tuple[Any, int, bool]]:
        """For each request: who gets the answer, its opaque, and whether it is one-way."""
        self.pack()
        return [(each.by, each.sent.opaque, each.sent.is_oneway) for each in self._all()]

    def answers(
        self, words: Words, lead: bytes, places: Iterable[Place]
    ) -> tuple[dict[Any, bytes], list[tuple[Any, int, str]]]:
        """For requests that were taken, the answers, as frames for each connection. For those that
        were put, the first queue offset, and all ids.

        `places` is where the records are. An id is the `lead` and a log offset in hexadecimal.
        """
        self.pack()
        left = deque(places)
        answers: dict[Any, bytes] = {}
        others = []
        number = offset = position = 0
        for by, sent, is_put in self._all():
            ids, first = [], -1
            for size in sent.sizes:
                # records that were sent again may lie in several places
                if left and left[0][0] == number:
                    _, offset, position = left.popleft()
                first = offset if first < 0 else first
                ids.append(b"%b%016X" % (lead, position))
                number, offset, position = number + 1, offset + 1, position + size
            said = b",".join(ids)
            if is_put:
                others.append((by, first, said.decode()))
            elif not sent.is_oneway:
                answers[by] = answers.get(by, b"") + _answer(words, sent, said, first)
        return answers, others


def _answer(words: Words, sent: PlainSent, ids: bytes, offset: int) -> bytes:
    key = words[4] + sent.key.encode() if sent.key else b""
    numbers = str(sent.opaque).encode(), str(sent.queue_id).encode(), str(offset).encode()
    header = b"".join(
        (words[0], numbers[0], words[1], ids, words[2], numbers[1], words[3], numbers[2], key)
    )
    header += words[5]
    return _HEAD.pack(_LENGTH.size + len(header), len(header)) + header
