"""The gateway: `actor` is the process, with RocketMQ's own protocol for its clients and tools.

May import `shared`, `remoting`, and of `client` the core. No truth is kept here: what a client asks
is told by the log's files, or asked of the actor that owns it. Its name server can also be run
without a broker, in a process of its own.
"""

from penstock.actors.gateway.actor import Gateway
from penstock.actors.gateway.naming.alone import LoneNameServer

__all__ = ["Gateway", "LoneNameServer"]
