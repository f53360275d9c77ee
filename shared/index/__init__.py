"""The hash index: its files, writing them, looking keys up.

May import `files`, `formats`, `loops`, `memory`, `wire`. Never the log: entries are given to it,
and what makes them from the log stands above both.
"""
