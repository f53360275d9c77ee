"""RocketMQ's bytes: pure functions on buffers, from a record to an index item.

May import only the ground of shared/. It must never know files or sockets: a program that only
reads bytes (a test, Spark, a repair) loads nothing that could change a store.
"""
