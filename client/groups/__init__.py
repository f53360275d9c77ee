"""Members of consumer groups in ordinary, synchronous code, and what operators ask about groups.

May import `core`, `arrow`, `connecting`, `sending` (a member sends replies and blocks), and
`shared`. Dividing queues and deciding claims is left to the core, which does it without sockets,
for asyncio as well.
"""
