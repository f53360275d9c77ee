"""What clients and a broker say to each other, and the sockets that they say it over.

May import no other room. Never anything of one side alone: both ends must agree on all of it, and a
client loads it whole.
"""
