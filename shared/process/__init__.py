"""How an actor lives: its loop, doorbells, heartbeat, listening, and how a broker is found.

May import `store`, `log`, `memory`, `loops`, `wire`, `files`. Never what one
actor does: that is in its folder.
"""
