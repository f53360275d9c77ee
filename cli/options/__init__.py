"""Options that several commands share: which broker, which store, values and ranges, settings.

May import `printing`, `client`, and `shared`. Nothing here acts: options are checked before a
command begins.
"""
