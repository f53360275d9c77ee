"""Producers for ordinary, synchronous code, with transactions, and requests and their replies.

May import `core`, `connecting`, `reading` (a requester reads its replies), and `shared`. Nothing
here decides how a message becomes a frame, which the core does: a producer owns the sockets, the
threads, and what callers wait on.
"""
