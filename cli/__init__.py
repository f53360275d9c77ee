"""The command `penstock`: a file for each command.

May import everything. Nothing heavy at import: `penstock --help` loads only what names commands.
"""
