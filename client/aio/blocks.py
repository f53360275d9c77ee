"""The asyncio twin of penstock.client.groups.exactly_once: a member's blocks in a coroutine.

Calls that wait for the broker run in a thread. A task that is cancelled while a block ends still
waits for that end, so that it is known whether the block is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock.client.groups.exactly_once import BlockOutputs, ExactlyOnce

_Result = TypeVar("_Result")


class AioBlockOutputs:
    """A block to be entered with `async with`."""

    def __init__(self, work: Callable[[], ExactlyOnce], ahead: int) -> None:
        """`work` may block."""
        self._work, self._ahead = work, ahead
        self._outputs: BlockOutputs | None = None

    async def __aenter__(self) -> BlockOutputs:
        self._outputs = await asyncio.to_thread(lambda: BlockOutputs(self._work(), self._ahead))
        return self._outputs.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outputs = self._outputs
        assert outputs is not None
        await to_its_end(lambda: outputs.__exit__(kind, error, trace))


async def to_its_end(call: Callable[[], _Result]) -> _Result:
    """Run a call in a thread and wait for its end, however often the task is cancelled."""
    ending = asyncio.ensure_future(asyncio.to_thread(call))
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait({ending})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and ending.exception() is None:
        raise cancelled
    return ending.result()
