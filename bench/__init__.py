"""Measurements of the product by itself: a room for each kind, one question a file.

May import `chaos`, and what that may except `maintenance`. No file of the product imports it, and
no bar is in it: docs/performance.md says what is required of a figure, and what was measured stays
as it was.
"""
