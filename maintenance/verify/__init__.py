"""The one check of a store's invariants: log, queues, index, groups. It reads, and writes nothing.

May import the rest of `maintenance` (cuts, side_by_side, verify_loops) and `shared`. No record is
read here by the code that wrote it: the verifier has loops of its own.
"""
