"""Which broker is meant, where it is now, and what becomes of a connection to it.

May import `core` and `shared`. Nothing here knows what is said over a connection: producers,
consumers and queries all come this way.
"""
