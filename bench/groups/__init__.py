"""What stands above the log: groups that share queues, delayed messages, blocks of exactly once.

May import `bench/loads` and what that may. Nothing here compares with another broker.
"""
