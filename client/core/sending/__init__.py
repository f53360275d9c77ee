"""How messages become frames, and frames become answers: the producer's half of the core.

May import the rest of `client.core`, and `shared`. No clock is read here: the driver passes the
time.
"""
