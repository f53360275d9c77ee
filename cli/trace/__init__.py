"""`penstock trace`: what happened to a message, from a broker, a store's files, or both.

May import `options`, `printing`, `client`, `maintenance`, and `shared`. Nothing here writes, so any
broker may be traced at any time.
"""
