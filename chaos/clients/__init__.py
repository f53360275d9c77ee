"""Clients that mean harm, send nonsense, or are too many.

May import `client`, `remoting`, `spark`, `shared`, and the rest of `chaos`. It must never know
actors: a client knows only a broker's sockets, and so must what attacks it.
"""
