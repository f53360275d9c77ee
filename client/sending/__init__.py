"""Producers for ordinary, synchronous code, with transactions, and requests and their replies.

May import `core`, `connecting`, `reading` (a requester reads its replies), and `shared`. The core
decides how a message becomes a frame; a producer here owns the sockets, the threads, and what
callers wait on.
"""
