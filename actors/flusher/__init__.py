"""The flusher: `actor` is the process, the other files are organs that no other process has.

May import `shared`. Nothing that another actor needs is here: what two must agree on is in
`shared`.
"""

from penstock.actors.flusher.actor import Flusher

__all__ = ["Flusher"]
