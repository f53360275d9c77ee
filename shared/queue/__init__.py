"""Consume queues: live files, windows of them, snapshots, what is known of their ends.

May import `log`, `memory`, `loops`, `files`, `formats`. Never a consumer's place: a queue
knows what is in it, and not who has read it.
"""
