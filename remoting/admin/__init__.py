"""What operators' tools ask a broker: the fields and the bodies of those requests. No I/O.

    words    fields of requests
    bodies   JSON of answers and requests
    config   a broker's configuration in RocketMQ's words

May import the rest of `remoting`, and `shared`. What a request does is never here: that is for the
gateway (actors/gateway/requests).
"""
