"""C libraries loaded before others: a disk that fails, a recorder of writes, a clock that jumps.

May import `shared`. It must never judge: a library cannot tell what its process has promised.
"""
