"""What RocketMQ does with a message that is to come later, again, or only perhaps: names and rules.

May import `formats`. It must never know an actor's state or sockets: each rule is a pure function,
so that every entrance to the broker applies the same one, and a client can apply it before it
sends.
"""
