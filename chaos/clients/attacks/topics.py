"""Attacks on the list of topics."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from itertools import count

import zmq

from penstock.chaos.broker import Broker
from penstock.chaos.clients.attacks.peer import CONSUMERS, peers
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode

# More topics than one client may have waiting, and requests to list them.
TOPICS, LISTS = 2000, 3000
_numbers = count(1)


def many_topics(broker: Broker, dice: random.Random) -> list[str]:
    """An endless number of topics."""
    with peers(broker.produce) as (peer,):
        for number in range(TOPICS):
            peer.send(encode(messages.CreateTopic(number + 1, f"evil{next(_numbers)}", 1)))
            peer.drain()
        time.sleep(1)
    return []


def list_topics(broker: Broker, dice: random.Random) -> list[str]:
    """List all topics again and again, without reading the answers."""
    with peers(broker.produce, CONSUMERS) as evil:
        for number in range(LISTS // CONSUMERS):
            for each in evil:
                with suppress(zmq.Again):
                    each.socket.send(encode(messages.ListTopics(number + 1)), zmq.NOBLOCK)
        time.sleep(0.5)
    return []
