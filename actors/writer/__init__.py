"""The writer: `actor` is the process, the other files are organs that no other process has.

May import `shared`. Nothing that another actor needs is here: what two must agree on is in
`shared`.
"""

from penstock.actors.writer.actor import Writer

__all__ = ["Writer"]
