"""A broker in one process, stepped by dice; every store and sync of it is an event.

May import `actors`, `client.core`, `maintenance`, `shared`, and the tools of `chaos`. No clock and
no thread: the same dice give the same run, so a failure can be repeated.
"""
