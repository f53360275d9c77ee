"""What lies in shared memory for one run: positions, queue table, pool, rings.

May import `loops`, `wire` and `files`. It must never hold the only copy of a disk format: what is
here is gone after a reboot, and a start must do without it.
"""
