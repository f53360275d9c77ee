"""One process each: a file, or a folder with the organs that only this process has.

May import `shared`, `remoting`, and the core of `client`, with which an actor puts messages into
the log as any producer does. Never another actor: two actors interact by shared memory and
doorbells alone, so each can be killed and replaced while the others notice no more than a pause.
"""
