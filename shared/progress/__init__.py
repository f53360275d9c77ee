"""How far groups have come, and their settings: RocketMQ's files for that, and Penstock's journal.

May import `store`, `messaging`, `wire`, `files`. It must never know processes: a format is the same
for every reader, and the actor that owns a file decides who may change it.
"""
