"""How much faster than RocketMQ any broker could be with RocketMQ's client on one machine.

May import what serves and loads brokers. Nothing here stores a message: that would be one more
broker.
"""
