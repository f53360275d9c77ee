"""What runs once per message, in two forms: compiled, and its twin in Python.

`active` chooses, and everybody else imports the loops from there, and from `forms` what they take
and give. May import `formats`, `messaging` and `wire`. Never files or sockets: a loop is given
buffers, and both forms can be checked against each other.
"""
