"""The hash index: its files, writing them, looking keys up.

May import `files`, `formats`, `loops`, `memory`, `wire`. It must never know the log: entries are
given to it by code that stands above both.
"""
