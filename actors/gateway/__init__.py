"""The gateway's process: RocketMQ's own protocol, for its clients and tools."""

from penstock.actors.gateway.actor import Gateway

__all__ = ["Gateway"]
