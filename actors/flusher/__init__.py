"""The flusher: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.flusher.actor import Flusher

__all__ = ["Flusher"]
