"""How commands write: tables, JSON lines, messages by template, progress, errors.

May import `client` and `shared`. Nothing here knows a command: callers pass rows and fields.
"""
