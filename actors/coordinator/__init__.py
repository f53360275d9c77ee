"""The coordinator: `actor` is the process, the other files are organs that no other process has.

May import `shared`, and of `client` the core. Nothing that another actor needs is here: what two
must agree on is in `shared`.
"""

from penstock.actors.coordinator.actor import Coordinator

__all__ = ["Coordinator"]
