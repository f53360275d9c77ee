"""Connections: bytes in as frames, frames out as bytes, and what is asked over one.

Nothing here knows what a request means, nor any of the other rooms.
"""
