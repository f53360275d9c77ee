"""RocketMQ's bytes: pure functions on buffers, from a record to an index item.

May import the ground. Never a file or a socket: whoever only reads bytes (a test,
Spark, a repair) loads nothing that could change a store.
"""
