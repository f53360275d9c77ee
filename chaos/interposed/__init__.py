"""C libraries loaded before others: a disk that fails, a recorder of writes, a clock that jumps."""
