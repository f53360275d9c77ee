"""What lies in shared memory for one run: positions, queue table, pool, rings.

May import `loops`, `wire` and `files`. Never a format on disk: what is here is gone with the
machine, and a start must do without it.
"""
