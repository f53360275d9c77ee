"""The gateway's process: RocketMQ's own protocol, for its clients and tools.

Its name server can also be run without a broker, in a process of its own.
"""

from penstock.actors.gateway.actor import Gateway
from penstock.actors.gateway.naming.alone import LoneNameServer

__all__ = ["Gateway", "LoneNameServer"]
