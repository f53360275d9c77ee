"""The hash index: its files, writing them, looking keys up.

May import `formats`, `files`, `loops`. Never the log: entries are given to it, and who builds them
from the log stands above both.
"""
