"""`penstock trace`: what became of a message, from a broker, a store's files, or both.

May import `options`, `printing`, `client`, `maintenance`, and `shared`. Nothing here writes: a
trace may be asked of any broker at any time.
"""
