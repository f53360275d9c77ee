"""Which broker is meant, where it is now, and what happens to a connection to it.

May import `core` and `shared`. Producers, consumers and queries all use this, so nothing here knows
what is said over a connection.
"""
