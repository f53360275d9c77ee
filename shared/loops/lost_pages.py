"""Pages of mapped files that the disk cannot read: compiled, they become pages of 0xFF.

The kernel answers the first touch of such a page with SIGBUS. Python cannot go on from that: there
is no way to put another page there before the touch is done again. So what is here only has the
names of what `compiled` does, and a process without it ends, as any process would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PageWatch:
    """While it lives, pages of this mapping that cannot be read are read as bytes of 0xFF.

    What is stored in such a page is lost, so only for files that are read or can be made again.
    `end` it once nothing is mapped there any more: another mapping may come to the same place.
    """

    def __init__(self, mapped: Buffer) -> None:
        pass

    @property
    def lost(self) -> int:
        """How many pages could not be read so far."""
        return 0

    @property
    def first(self) -> int:
        """Where in the mapping the first of them begins."""
        return 0

    def end(self) -> None:
        """Watch it no longer."""


def lost_pages() -> int:
    """How many pages of all mappings this process could not read so far."""
    return 0


def touch_pages(data: Buffer) -> None:
    """Have pages that cannot be read be replaced before a system call is given them: that would
    fail with EFAULT, and ZeroMQ ends the process for it."""
