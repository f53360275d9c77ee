"""A broker in one process, stepped by dice, whose every store and sync is an event.

May import `actors`, `client.core`, `maintenance`, `shared`, and the tools of `chaos`. No clock and
no thread: the same dice give the same run, and so a failure comes again.
"""
