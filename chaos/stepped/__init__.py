"""A broker in one process, stepped by dice, whose every store and sync is an event."""
