"""A name server: which brokers there are, and where each topic is. States and codecs, without I/O.

    words         the fields and bodies of its requests
    registration  what a broker says of itself, in its two forms
    routes        the brokers and topics that were registered
    server        the requests, and what is answered to each

May import the files beside it in `remoting`, and `shared`. One name server has many owners of its
routes: each broker says for itself what it has, again and again, and is forgotten when it is
silent. So nothing here is durable but the few settings of KV.
"""
