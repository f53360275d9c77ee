"""How messages become frames, and frames become answers: the producer's half of the core.

May import the rest of `client.core`, and `shared`. No clock is read here: whoever drives it says
how late it is.
"""
