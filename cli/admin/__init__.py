"""Commands that look after topics, groups, dead letters, disk space and saved contexts.

May import `options`, `printing`, `client`, and `shared`. No file of a
broker is written here: each change is asked of the broker that runs.
"""
