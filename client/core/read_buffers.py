"""The memory that a consumer reads records into, used again and again.

Owns the last few buffers. Knows nothing of what is read. A new buffer for each answer would cost
more than reading it: the C library gives megabytes back to the kernel when they are free, the
kernel clears each page again when it is touched, and Python clears the whole once more.
"""

from __future__ import annotations

from collections import deque

# A shorter one is left to the C library, which keeps what is that short.
LEAST_BYTES = 256 << 10
# One is read into while messages of the two before it are worked on.
KEPT = 3


class ReadBuffers:
    """Gives memory out. It counts as free once no view of it is left, whoever had one."""

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque(maxlen=KEPT)

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes that nobody looks at, with anything in it. Any thread may ask."""
        if size < LEAST_BYTES:
            # a consumer that has caught up keeps nothing for the next flood
            self._kept.clear()
            return memoryview(bytearray(size))
        for _ in range(KEPT):
            try:
                buffer = self._kept.pop()  # so that no other thread tries the same
            except IndexError:
                break
            if len(buffer) >= size and _is_free(buffer):
                return self._keep(buffer, size)
            self._kept.appendleft(buffer)
        # the next answers are about as long, and a power of two is long enough for most of them
        return self._keep(bytearray(1 << (size - 1).bit_length()), size)

    def _keep(self, buffer: bytearray, size: int) -> memoryview:
        # the view is there before another thread can find the buffer
        view = memoryview(buffer)[:size]
        self._kept.append(buffer)
        return view


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of it is left: only then may its length change. Its memory stays in place."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
