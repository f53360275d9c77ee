"""A name server: which brokers there are, and where each topic is. States and codecs, without I/O.

    words         the fields and bodies of its requests
    registration  what a broker says of itself, in its two forms
    routes        the brokers and topics that were registered
    server        the requests, and what is answered to each

May import the rest of `remoting`, and `shared`. A name server's routes have many owners: each
broker says again and again what it has, and is forgotten when it is silent. So nothing here is
durable except the few KV settings.
"""
