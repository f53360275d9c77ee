"""What runs once per message, in two forms: compiled, and its twin in Python.

`active` chooses; everybody else imports from there. May import `formats` and `wire`. Never files or
sockets: a loop is given buffers, and both forms can be checked against each other.
"""
