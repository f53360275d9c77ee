"""The commit log: reading it live, scanning it, what was found in it, knowing its damage.

May import `memory`, `loops`, `wire`, `messaging`, `files`, `formats`. Never a queue or an index:
the log is the truth that those are made from.
"""
