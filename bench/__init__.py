"""Measurements of the product by itself: a room for each kind, one question a file.

May import `chaos`, and what that may but `maintenance`. No file of the product imports it, and no
bar is in it: what is asked of a figure stands in docs/performance.md, and what was measured stays
what it was.
"""
