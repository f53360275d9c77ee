"""Attacks on the gateway, by RocketMQ's protocol."""

from __future__ import annotations

import random

from penstock.chaos.broker import Broker
from penstock.chaos.clients.bent_commands import another_client, throw

COMMANDS = 10_000


def bent_commands(broker: Broker, dice: random.Random) -> list[str]:
    """Frames of RocketMQ's protocol, most of them with something wrong."""
    endpoint = broker.status()["endpoints"]["remoting"]
    with another_client(endpoint) as wrong:
        throw(endpoint, dice, COMMANDS)
    return wrong
