"""Producers, consumers and queries as state machines: bytes in, commands out.

May import `shared`. No sockets, no threads and no event loop, so that the blocking client, the
asyncio client and an actor that appends drive the same code.
"""
