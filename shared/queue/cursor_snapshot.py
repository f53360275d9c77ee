"""Where a held pull stood in the queues of its topic: what is compared when queues have grown.

Made for each pull that is held, so it makes its arrays when they are compared the first time: a
pull of a consumer that keeps up is mostly answered before. What queues hold it is not told: their
reader compares. numpy is imported with the arrays, as there.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CursorSnapshot:
    """A consumer's cursors in queues of one topic, with the number of queues it had then."""

    def __init__(self, topic: str, queues: int, deleted: int, at: dict[int, int]) -> None:
        """`at`: the offsets of the slots. `deleted`: how many queues had been deleted by then, for
        a new one may have the place of an old one."""
        self.topic, self.queues, self.deleted, self._at = topic, queues, deleted, at

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
        """Slots, and offsets in them."""
        import numpy as np

        at, count = self._at, len(self._at)
        return np.fromiter(at, np.intp, count), np.fromiter(at.values(), np.uint64, count)
