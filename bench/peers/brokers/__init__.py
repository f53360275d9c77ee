"""One file a broker: how it is started and stopped, which processes send to it and read from it.

May import `bench/loads`, and what that may. Nothing here compares one with another.
"""
