"""Other brokers under the same load as Penstock, and `compare`, which runs them all.

May import `bench`, and what that may. Nothing here knows Penstock's parts: it is one broker among
others, reached by its clients.
"""
