"""The commit log: reading it live, scanning it, knowing its damage.

May import `memory`, `loops`, `messaging`, `files`, `formats`. Never a queue or an index: the log is
the truth that those are made from.
"""
