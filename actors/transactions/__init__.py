"""Transactions: `actor` is the process, the other files are organs that no other process has.

May import `shared`, and of `client` the core, by which it is a producer. Nothing that another actor
needs is here: what two must agree on is in `shared`.
"""

from penstock.actors.transactions.actor import Transactions

__all__ = ["Transactions"]
