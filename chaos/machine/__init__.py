"""What the machine says of processes: their trees, memory, leaks; and workers for its cores.

May import `shared`, and `spark` for a cluster of its own. Never a kind of harm: it looks and
starts, and does nothing to a broker.
"""
