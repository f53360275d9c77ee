"""What the machine tells of processes: their trees, memory, leaks; and workers for its cores.

May import `shared`, and `spark` for a cluster of its own. It must never know kinds of harm: it
looks and starts processes, and does nothing to a broker.
"""
