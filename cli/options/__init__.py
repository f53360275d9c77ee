"""What several commands are told: which broker, which store, values and their ranges, settings.

May import `printing`, `client`, and `shared`. Nothing here acts: an option is checked before a
command begins.
"""
