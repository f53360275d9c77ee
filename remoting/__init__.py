"""RocketMQ's remoting protocol as pure codecs and states: bytes in, commands out, and back.

May import `shared` alone. Never sockets, files, clocks or the store: what a request does is for the
gateway (actors/gateway), and who may use this besides is a client that speaks it.
"""
