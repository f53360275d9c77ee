"""Connections: bytes in as frames, frames out as bytes, and what is asked over one.

May import `shared` and `remoting`. Never another room of the gateway. It does not know what a
request means, so a client can cost no more than its own connection.
"""
