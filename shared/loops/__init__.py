"""What runs once per message, in two forms: compiled, and its twin in Python.

`active` chooses, and all others import the loops from there, and from `forms` their arguments and
results. May import `formats`, `messaging` and `wire`. It must never know files or sockets: a loop
is given buffers, so both forms can be checked against each other.
"""
