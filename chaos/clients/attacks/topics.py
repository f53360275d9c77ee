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

# More topics than may wait of one client, and lists.
TOPICS, LISTS = 2000, 3000
_numbers = count(1)


def many_topics(broker: Broker, dice: random.Random) -> list[str]:
    """Topics without an end."""
    with peers(broker.produce) as (peer,):
        for number in range(TOPICS):
            peer.send(encode(messages.CreateTopic(number + 1, f"evil{next(_numbers)}", 1)))
            peer.drain()
        time.sleep(1)
    return []


def list_topics(broker: Broker, dice: random.Random) -> list[str]:
    """All topics, again and again, and nobody who reads them."""
    with peers(broker.produce, CONSUMERS) as evil:
        for number in range(LISTS // CONSUMERS):
            for each in evil:
                with suppress(zmq.Again):
                    each.socket.send(encode(messages.ListTopics(number + 1)), zmq.NOBLOCK)
        time.sleep(0.5)
    return []
