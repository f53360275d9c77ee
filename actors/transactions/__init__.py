"""Transactions: `actor` is the process, the other files are organs that no other process has."""

from penstock.actors.transactions.actor import Transactions

__all__ = ["Transactions"]
