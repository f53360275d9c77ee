"""The reader: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.reader.actor import Reader

__all__ = ["Reader"]
