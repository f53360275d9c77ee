"""The writer: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.writer.actor import Writer

__all__ = ["Writer"]
