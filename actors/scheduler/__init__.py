"""The scheduler: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.scheduler.actor import Scheduler

__all__ = ["Scheduler"]
