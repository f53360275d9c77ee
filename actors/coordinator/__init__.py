"""The coordinator: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.coordinator.actor import Coordinator

__all__ = ["Coordinator"]
