"""Other brokers under the same load as Penstock, and `compare`, which runs them all.

May import `bench`, and what that may. Nothing that knows Penstock's parts: here it is one broker
among others, reached by its clients.
"""
