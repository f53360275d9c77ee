"""Members of consumer groups in ordinary, synchronous code, and what operators ask about groups.

May import `core`, `arrow`, `connecting`, `sending` (a member sends replies and blocks), and
`shared`. Nothing here divides queues or decides claims: the core does, without sockets, and for
asyncio as well.
"""
