"""Members of consumer groups in ordinary, synchronous code, and what operators ask about groups.

May import `core`, `arrow`, `connecting`, `sending` (a member sends replies and blocks), and
`shared`. No queue is divided and no claim decided here: the core does that without sockets, for
asyncio as well.
"""
