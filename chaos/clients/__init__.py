"""Clients that mean harm, send nonsense, or are too many.

May import `client`, `remoting`, `spark`, `shared`, and the rest of `chaos`. Never an actor: a
client knows a broker by its sockets alone, and so must what attacks it.
"""
