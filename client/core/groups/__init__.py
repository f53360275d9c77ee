"""A member of a consumer group, without sockets and threads.

Divides queues, tracks what is in hand of each, claims, commits, and sends back.

May import the rest of `client.core`, and `shared`. Nothing here talks to a broker: requests are
handed to the driver.
"""
