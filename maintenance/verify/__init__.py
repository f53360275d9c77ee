"""The one check of a store's invariants: log, queues, index, groups. It writes nothing.

May import the rest of `maintenance` (cuts, side_by_side, verify_loops) and `shared`. Usual records
are not read here by the code that wrote them: the verifier has loops of its own.
"""
