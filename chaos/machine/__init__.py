"""What the machine says of processes: their trees, memory, leaks; and workers for its cores."""
