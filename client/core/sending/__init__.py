"""How messages become frames, and frames become answers: the producer's half of the core.

May import `client.core` and `shared`.
"""
