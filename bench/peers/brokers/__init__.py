"""A broker a file: how it is started and stopped, and which processes send to it and read from it.

May import `bench/loads`, and what that may. Nothing here compares one with another.
"""
