"""The gateway: `actor` is the process, with RocketMQ's own protocol for its clients and tools.

May import `shared`, `remoting`, and of `client` the core. It keeps no truth of its own: it answers
a client from the log's files, or asks the actor that owns the answer. Its name server can also be
run without a broker, in a process of its own.
"""

from penstock.actors.gateway.actor import Gateway
from penstock.actors.gateway.naming.alone import LoneNameServer

__all__ = ["Gateway", "LoneNameServer"]
