"""One process each: a file, or a folder with the organs that only this process has.

May import `shared`, `remoting`, and of `client` the core, with which an actor puts messages into
the log as any producer does. Never another actor: two of them agree by shared memory and doorbells
alone, so each can be killed and replaced without the other noticing more than a pause.
"""
