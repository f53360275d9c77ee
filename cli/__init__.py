"""The command `penstock`: a room for each kind of command, with a file for each command.

May import everything except `remoting`, `embedded` and `testing`. Nothing heavy is imported early:
`penstock --help` loads only what names commands. A command does no work of its own: it reads its
options, calls what does the work, and prints, so that a program can do the same without it.
"""
