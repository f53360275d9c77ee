"""Name servers: the one that a broker's gateway is for its clients, one that runs alone, and those
that the broker registers itself with.

May import `shared`, `remoting`, and of the gateway `connecting`. No route is kept here: what name
servers know and answer is in remoting/naming.
"""
