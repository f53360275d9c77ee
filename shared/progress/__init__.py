"""How far groups have come, and what they are: RocketMQ's files of it, and Penstock's journal.

May import `store`, `messaging`, `wire`. Never a process: a form is the same whoever reads it, and
who may change a file is decided by the actor that owns it.
"""
