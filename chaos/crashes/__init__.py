"""Kills at each crash point, and what starts, senders and repairs make of them.

May import `client`, `shared`, and the tools of `chaos`. No crash point of its own: they stand in
the product, where a crash is to come, and `shared/faults.py` has their names.
"""
