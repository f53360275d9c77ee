"""How an actor lives: its loop, doorbells, heartbeat and listening sockets; how a broker is found.

May import `store`, `log`, `memory`, `loops`, `wire`, `files`. It must never know what any one actor
does: that is in the actor's folder.
"""
