"""Kills at each crash point, and how starts, senders and repairs cope with them.

May import `client`, `shared`, and the tools of `chaos`. It must never have crash points of its own:
they stand in the product, where a crash is to come, and `shared/faults.py` has their names.
"""
