"""Reading without a group: a topic's messages from a place on, and single messages by key or id.

May import `core`, `arrow`, `connecting`, and `shared`. Nothing here knows of groups: who keeps a
place is the program itself.
"""
