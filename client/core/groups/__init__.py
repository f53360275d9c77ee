"""A member of a consumer group without sockets and threads.

Dividing queues, what is in hand of each, claims and commits, sending back. Files here import each
other, `client.core` and `shared`.
"""
