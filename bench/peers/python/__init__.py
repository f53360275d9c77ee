"""Other brokers' Python clients, used as their own documentation says to be fast.

May import `bench/loads`, `bench/peers/brokers` and what these may. Nothing here knows how often a
client is measured, or compared with what.
"""
