"""What RocketMQ makes of a message that is to come later, again, or only perhaps: names and rules.

May import `formats`. Never an actor's state or a socket: each rule is a pure function, so that
every door to the broker applies the same one, and a client can apply it before it sends.
"""
