"""What the gateway asks of others, actors and clients, until it is answered.

May import `shared`. No request of RocketMQ's is known here: whoever asks says what becomes of the
answer.
"""
