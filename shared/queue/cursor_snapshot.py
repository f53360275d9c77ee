"""Where a held pull stood in the queues of its topic: compared when queues have grown.

One is made for each pull that is held. It makes its arrays at the first comparison, because the
pull of a consumer that keeps up is mostly answered before that. It does not know what the queues
hold: their reader compares. As in the reader, numpy is imported only with the arrays.
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
        """`at`: slot -> offset. `deleted`: how many queues had been deleted by then, because a new
        queue may have replaced an old one."""
        self.topic, self.queues, self.deleted, self._at = topic, queues, deleted, at

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
        """Slots, and the offsets in them."""
        import numpy as np

        at, count = self._at, len(self._at)
        return np.fromiter(at, np.intp, count), np.fromiter(at.values(), np.uint64, count)
