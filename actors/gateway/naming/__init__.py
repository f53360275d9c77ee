"""Name servers: the one that a broker's gateway is for its clients, one that runs alone, and those
that the broker registers itself with. What they know and answer is in remoting/naming."""
