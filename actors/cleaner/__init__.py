"""The cleaner: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.cleaner.actor import Cleaner

__all__ = ["Cleaner"]
