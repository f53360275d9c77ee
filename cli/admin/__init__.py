"""Commands that look after topics, groups, dead letters, disk space and saved contexts.

May import `options`, `printing`, `client`, and `shared`. These commands never write a broker's
files: they ask the running broker for each change.
"""
