"""C libraries loaded before others: a disk that fails, a recorder of writes, a clock that jumps.

May import `shared`. Nothing that judges: a library cannot tell what its process has promised.
"""
