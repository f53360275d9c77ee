"""What clients and a broker say to each other, and the sockets that they say it over.

May import no other room. It must never have anything that only one side needs: both ends must agree
on all of it, and a client loads it whole.
"""
