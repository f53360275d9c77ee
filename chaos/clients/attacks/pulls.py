"""Attacks on the reader: pulls with filters, groups, queries, and answers that nobody reads."""

from __future__ import annotations

import random
import time
from itertools import count, islice, product

from penstock.chaos.broker import Broker
from penstock.chaos.clients.attacks.peer import ANSWER_MS, CONSUMERS, EMPTY, EVIL, peers
from penstock.chaos.clients.crowd import stuck_consumers
from penstock.chaos.load import TOPIC
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Pull, Pulled, Subscription, encode

GROUPS, HELD = 10_000, 20_000
# Consumers with long filters, and pulls of each. A socket takes requests from its connections in
# turn: a reader that did not defer filters would hold others up until it had parsed all of these.
FILTERING, FILTERS = 200, 2
# Keys of one message with the same hash; such messages; and clients that query that hash at a time.
SAME, SAME_MESSAGES, ASKING = 512, 20, 4
# Short, as other clients are watched meanwhile; the answers do not matter here.
QUERY_MS = 500
_numbers = count(1)


def long_filters(broker: Broker, dice: random.Random) -> list[str]:
    """Conditions and tags of maximum length, and longer, a different one with each pull of each
    consumer. The consumers stay until they are answered: if they left, their filters would cost
    nothing."""
    with peers(broker.consume, FILTERING) as evil:
        for number in range(FILTERS):
            for each in evil:
                wanted = Subscription(*_long_filter(dice), {}, "", 0)
                each.send(encode(Pull(number + 1, TOPIC, {0: 0}, 9, 1000, 500, wanted)))
            # one deadline for all: a reader that has been replaced meanwhile sends no answer
            until = time.monotonic() + ANSWER_MS / 1000
            for each in evil:
                each.socket.poll(max(0, (until - time.monotonic()) * 1000))
                each.drain()
    return []


def _long_filter(dice: random.Random) -> tuple[str, str]:
    seed = dice.getrandbits(30)
    sql = " OR ".join(f"a{seed + each} = {each}" for each in range(450))[:8000]
    if dice.random() < 1 / 3:
        return "TAG", "||".join(f"{seed}-{each}" for each in range(dice.choice((1800, 50_000))))
    return "SQL92", dice.choice((sql, f"{sql[:7900]} OR"))


def long_properties(broker: Broker, dice: random.Random) -> list[str]:
    """Messages with properties of maximum length, and conditions on all of them."""
    named = {f"p{number}": "value" for number in range(2000)}
    with peers(broker.produce) as (peer,), peers(broker.consume, CONSUMERS) as evil:
        peer.hello()
        for number in range(300):
            properties = encode_properties({"UNIQ_KEY": f"p{number}", **named})
            peer.append(EVIL, encode_record(Record(EVIL, b"x", properties)))
            peer.answer()
        wanted = Subscription("SQL92", "p1 = 'value' AND p1999 = 'another'", {}, "", 0)
        for number in range(5):
            for each in evil:
                each.drain()
                each.send(encode(Pull(number + 1, EVIL, {0: 0}, 9, 1 << 20, 300, wanted)))
            time.sleep(0.3)
    return []


def many_groups(broker: Broker, dice: random.Random) -> list[str]:
    """A group with each pull and a filter of maximum length, then short ones. Groups that come
    after them must still be served."""
    with peers(broker.consume) as (peer,):
        for number in range(GROUPS):
            filler = " " * (8000 if number < GROUPS // 2 else 0)
            wanted = Subscription("SQL92", f"a = 1{filler}", {}, f"evil{next(_numbers)}", 1)
            peer.send(encode(Pull(number + 1, TOPIC, {0: 0}, 9, 1000, 0, wanted)))
            peer.drain()
    return new_group(broker)


def new_group(broker: Broker) -> list[str]:
    """What is wrong with how a new group is served."""
    group = f"honest{next(_numbers)}"
    wanted = Subscription("SQL92", "UNIQ_KEY IS NOT NULL", {}, group, 1)
    with peers(broker.consume) as (peer,):
        peer.send(encode(Pull(1, TOPIC, {0: 0}, 9, 1000, ANSWER_MS, wanted)))
        if not peer.socket.poll(ANSWER_MS):
            return ["a new group with a filter gets no answer"]
        header, *payload = peer.socket.recv_multipart()
    answer = messages.decode_consume_answer(header)
    if not isinstance(answer, Pulled) or not b"".join(payload):
        return [f"a new group with a filter is told: {answer}"]
    return []


def held_pulls(broker: Broker, dice: random.Random) -> list[str]:
    """Pulls of one connection that wait for what never comes."""
    wanted = Subscription("SQL92", "a = 1", {}, "", 0)
    with peers(broker.consume) as (peer,):
        for number in range(HELD):
            chosen = wanted if number % 2 else None
            peer.send(encode(Pull(number + 1, EMPTY, {0: 0}, 9, 1000, 30_000, chosen)))
        peer.drain()
    return []


def same_hash(broker: Broker, dice: random.Random) -> list[str]:
    """Messages with many keys of the same hash, and queries for another such key."""
    # "Aa" and "BB" have the same hash, and so has each row of them after the same beginning
    begin = f"{dice.getrandbits(60):x}"
    rows = product(("Aa", "BB"), repeat=10)
    keys = [begin + "".join(row) for row in islice(rows, SAME + ASKING)]
    raw = encode_record(Record(EVIL, b"", encode_properties({"KEYS": " ".join(keys[:SAME])})))
    with peers(broker.produce) as (peer,), peers(broker.consume, ASKING) as evil:
        peer.hello()
        for _ in range(SAME_MESSAGES):
            peer.append(EVIL, raw)
        for _ in range(SAME_MESSAGES):
            peer.answer()
        broker.await_dispatched()
        for each, key in zip(evil, keys[SAME:], strict=True):
            each.send(encode(messages.Query(1, EVIL, key, 32, 0, 1 << 60, False)))
        for each in evil:
            each.socket.poll(QUERY_MS)
    return []


def never_read(broker: Broker, dice: random.Random) -> list[str]:
    """Consumers that ask for everything and read nothing of it."""
    with stuck_consumers(broker.consume, TOPIC):
        time.sleep(1)
    return []
