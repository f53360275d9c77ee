"""The allocator: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.allocator.actor import Allocator

__all__ = ["Allocator"]
