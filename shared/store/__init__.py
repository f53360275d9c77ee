"""A store directory as a whole: lock, sizes, topics, checkpoint, RocketMQ's JSON.

May import `index`, `queue`, `log`, `memory`, `messaging`, `filters`, `files`, `formats`. It must
never know processes: everything here is also true of a store on which no broker runs.
"""
