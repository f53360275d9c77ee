"""Callers of the writer: producers over ZeroMQ, the gateway by a stream. Requests in, answers out.

Either way, a request is its connection's name, a header and perhaps records. This file does not
know what a request means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq

from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.process.actor import Stage
from penstock.shared.wire.local_stream import LocalStream, StreamListener
from penstock.shared.wire.sockets import FRAME_HEADROOM, WRITER_STREAM, serve
from penstock.shared.wire.unread_answers import UnreadAnswers

# Unread answers to one producer: all the frames that may wait here may be turned away at once.
ANSWERS_WAITING = 1024
# peer, header, records
FRAME_PARTS = 3
# The length of a stream's name. A ZeroMQ client may choose its own name, but only a shorter one.
_NAME_BYTES = 256


class Asked(NamedTuple):
    """A request as it came. `parts` counts the name of its connection."""

    peer: bytes
    header: bytes
    records: memoryview
    parts: int

    @property
    def size(self) -> int:
        return len(self.peer) + len(self.header) + len(self.records)


class Callers:
    """All connections of one writer."""

    def __init__(self, stage: Stage, max_frame_bytes: int) -> None:
        self._stage = stage
        run, most = stage.run, FRAME_HEADROOM * max_frame_bytes
        self._listener = StreamListener(run.socket(WRITER_STREAM), most)
        stage.plain.add(self._listener)
        stage.listen(self._listener.handle)
        # it measures how many files are open without clients
        self._limit = stage.connection_limit(stage.config.max_connections)
        at = run.endpoints.produce, run.endpoints.produce_ipc
        listening = stage.listening
        self.socket: Any = serve(stage.context, at, max_frame_bytes, listening, ANSWERS_WAITING)
        self._inlet = stage.inlet(self.socket, "closed_producers")
        self.unread = UnreadAnswers()
        self._streams: dict[bytes, LocalStream] = {}
        self._handles: set[object] = set()
        self._streams_so_far = 0
        self._may_receive = True
        # `_is_stale`: ZeroMQ may have a request that will not end a sleep, because something was
        # sent since it last said that there is none. `_looks`: this turn asks ZeroMQ. A turn that
        # does not ask follows one in which the socket was `drained`.
        self._is_stale = self._looks = True

    def is_gateway(self, peer: bytes) -> bool:
        return peer in self._streams

    @property
    def drained(self) -> bool:
        """Whether there was no request at the last attempt to receive one."""
        return self._inlet.drained and not any(each.has_whole for each in self._streams.values())

    @property
    def idle_ms(self) -> int:
        return self._inlet.idle_ms

    def begin_turn(self, now_ms: int, held_bytes: int) -> None:
        """`held_bytes` is the memory of the requests that the writer keeps."""
        ready = self._stage.ready
        # asking ZeroMQ and tending its connections takes longer than handling a message
        self._looks = self._is_stale or not ready or not self._handles.issuperset(ready)
        self._stage.left_sockets_alone = not self._looks
        if self._looks:
            self._limit.tend(now_ms)
            self._inlet.tend(held_bytes + self.unread.size_bytes)
            self._accept()
        for name, stream in list(self._streams.items()):
            if stream.is_open and self._stage.heard(stream.handle):
                stream.flush()
                if self._may_receive:
                    stream.read()
            if not stream.is_open:
                self._drop(name, stream)

    def _accept(self) -> None:
        if not self._stage.heard(self._listener.handle):
            return
        while (stream := take_descriptor(self._listener.accept)) is not None:
            self._streams_so_far += 1
            self._streams[self._streams_so_far.to_bytes(_NAME_BYTES)] = stream
            self._handles.add(stream.handle)
            self._stage.plain.add(stream)

    def _drop(self, name: bytes, stream: LocalStream) -> None:
        """A stream has ended. Requests that came before its end are still stored."""
        self._stage.listen(stream.handle, False)
        if not stream.has_whole:
            self._handles.remove(stream.handle)
            stream.close()
            self._stage.plain.remove(stream)
            del self._streams[name]

    def receive(self) -> Asked | None:
        """The next request, with 0 `parts` if it was dropped; None if there is none."""
        for name, stream in self._streams.items():
            if (message := stream.next()) is not None:
                return Asked(name, *message, FRAME_PARTS)
        if not self._looks:
            return None
        # no copy: records are checked, and copied into the log, where ZeroMQ has put them
        parts = self._inlet.receive(copy=False)
        if parts is None:
            self._is_stale = False
            return None
        self._is_stale = True
        return _asked(parts)

    def send(self, peer: bytes, answer: bytes) -> None:
        """Send an answer of one part. ZeroMQ drops an answer to a name that it does not know, such
        as that of a stream that has ended."""
        if (stream := self._streams.get(peer)) is not None:
            stream.send(answer)
        else:
            self._is_stale, self._stage.left_sockets_alone = True, False
            self.unread.send(self.socket, (peer, answer))

    def end_turn(self, may_receive: bool) -> None:
        """While nothing may come in, requests that wait in the sockets must not end the sleep."""
        self._may_receive = may_receive
        self._stage.listen(self.socket, may_receive)
        for stream in self._streams.values():
            if stream.is_open:
                self._stage.listen(stream.handle, may_receive, room=stream.has_unsent)

    def close(self, linger_ms: int) -> None:
        self.socket.close(linger=linger_ms)
        self._listener.close()
        for stream in self._streams.values():
            stream.close()


def _asked(parts: list[zmq.Frame]) -> Asked:
    count = len(parts)
    header = parts[1].bytes if count > 1 else b""
    records = parts[2].buffer if count == FRAME_PARTS else memoryview(b"")
    return Asked(parts[0].bytes if parts else b"", header, records, count)
