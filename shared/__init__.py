"""What two processes must agree on: fourteen rooms on a ground of few files.

From the ground up, each importing only rooms before it: formats, files, filters, messaging, wire,
loops, memory, log, queue, index, store, progress, process, recovery. Each says in its `__init__`
what it is for, what it may import, and what must never be in it. May import nothing else of
Penstock: what only one process needs belongs in that actor's folder.
"""
