"""RocketMQ's remoting protocol as pure codecs and states: bytes in, commands out, and back.

May import `shared` alone. Never sockets, files, clocks or the store: what a request does is for the
gateway (actors/gateway). A client that speaks the protocol may use this room, too.
"""
