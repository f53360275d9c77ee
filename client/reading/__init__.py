"""Reading without a group: a topic's messages from a place on, and single messages by key or id.

May import `core`, `arrow`, `connecting`, and `shared`. Nothing here knows of groups: the program
itself keeps its place.
"""
