"""The commit log: reading it live, scanning it, what was found in it, its known damage.

May import `memory`, `loops`, `wire`, `messaging`, `files`, `formats`. It must never know queues or
the index: those are made from the log.
"""
