"""Name servers: the one that a broker's gateway is for its clients, one that runs alone, and those
that the broker registers itself with.

May import `shared`, `remoting`, and of the gateway `connecting`. No routes are kept here:
remoting/naming has what name servers know and answer.
"""
