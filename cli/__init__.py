"""The command `penstock`: a room for each kind, in it a file for each command.

May import everything but `remoting`, `embedded` and `testing`. Nothing heavy at import: `penstock
--help` loads only what names commands. No work of its own either: a command reads its options,
calls what does the work, and prints, so that a program can have the same without it.
"""
