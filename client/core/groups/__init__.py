"""A member of a consumer group without sockets and threads.

Dividing queues, what is in hand of each, claims and commits, sending back.

May import the rest of `client.core`, and `shared`. No broker is asked here: what is to be said is a
command to whoever drives it.
"""
