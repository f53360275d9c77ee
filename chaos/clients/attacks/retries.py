"""Attacks on the search for messages that are sent again."""

from __future__ import annotations

import random

from penstock.chaos.broker import Broker
from penstock.chaos.clients.attacks.peer import EVIL, VICTIM, Peer, message, peers
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_PHYSICAL_OFFSET, AT_SYS_FLAG
from penstock.shared.wire.messages import Appended

# A short body and the longest, and the number of each.
DENSE = ((60_000, 200), ((4 << 20) - 1000, 2))
# Records in a frame, and such frames: searching them takes seconds.
SMALL_AT_ONCE, SMALL_FRAMES = 8000, 40
RETRIES = 40


def foreign_key(broker: Broker, dice: random.Random) -> list[str]:
    """Store a key first; its owner's retry must not be acknowledged for what somebody else
    stored."""
    key = f"key-{dice.getrandbits(60):x}"
    with peers(broker.produce) as (peer,):
        peer.hello(stored_after=peer.hello().wrote)
        stored = []
        for topic, body in ((EVIL, b"forged"), (VICTIM, b"honest")):
            peer.append(topic, message(topic, body, key), retry=topic == VICTIM)
            stored.append(peer.answer())
    evil, honest = stored
    if not isinstance(honest, Appended) or not isinstance(evil, Appended):
        return [f"a retry is answered by {honest}, its forgery by {evil}"]
    if honest.runs[0].physical_offset == evil.runs[0].physical_offset:
        return ["a message was acknowledged for which another one is stored"]
    return []


def offset_in_a_body(broker: Broker, dice: random.Random) -> list[str]:
    """Make the writer search the log from within a body, which contains a record of the owner's."""
    key = f"key-{dice.getrandbits(60):x}"
    honest = message(VICTIM, b"honest", key)
    with peers(broker.produce) as (peer,):
        wrote = peer.hello().wrote
        # others store meanwhile, so the record is made for many possible places
        forged = b""
        for _ in range(40):
            inner = bytearray(honest)
            own_offset = wrote + AT_BODY_V4 + len(forged)
            inner[AT_PHYSICAL_OFFSET:AT_SYS_FLAG] = own_offset.to_bytes(8, "big")
            forged += bytes(inner)
        peer.append(EVIL, message(EVIL, forged, f"{key}-around"))
        stored = peer.answer()
        if not isinstance(stored, Appended):
            return [f"a message is answered by {stored}"]
        at = stored.runs[0].physical_offset
        peer.hello(stored_after=at + AT_BODY_V4)
        peer.append(VICTIM, honest, retry=True)
        found = peer.answer()
    if not isinstance(found, Appended):
        return [f"a retry is answered by {found}"]
    if at <= found.runs[0].physical_offset < at + len(forged):
        return ["a message was acknowledged that stands in another one's body only"]
    return []


def key_dense(broker: Broker, dice: random.Random) -> list[str]:
    """Bodies full of what looks like a key, and retries of that key from far before them."""
    unit = b"UNIQ_KEY\x01K\x02"
    with peers(broker.produce) as (peer,):
        start = peer.hello().wrote
        for body_bytes, number in DENSE:
            raw = message(EVIL, unit * (body_bytes // len(unit)), f"d{body_bytes}")
            for _ in range(number):
                peer.append(EVIL, raw)
            for _ in range(number):
                peer.answer()
        return _retry(peer, max(0, start - (16 << 20)))


def small_messages(broker: Broker, dice: random.Random) -> list[str]:
    """A log full of the smallest messages, and retries that may be anywhere in it."""
    frame = encode_record(Record(EVIL, b"")) * SMALL_AT_ONCE
    with peers(broker.produce) as (peer,):
        start = peer.hello().wrote
        for _ in range(SMALL_FRAMES):
            peer.append(EVIL, frame, SMALL_AT_ONCE)
            stored = peer.answer()
            if not isinstance(stored, Appended):
                return [f"a frame of small messages is answered by {stored}"]
            # a client that asks for a topic waits for the reput, but this is about the writer's
            # turns
            broker.await_dispatched()
        return _retry(peer, start)


def _retry(peer: Peer, stored_after: int) -> list[str]:
    """Send as a retry what was never sent, to be searched for from there on."""
    peer.hello(stored_after=stored_after)
    for number in range(RETRIES):
        peer.append(EVIL, message(EVIL, b"x%d" % number, "K"), retry=True)
    answers = [peer.answer() for _ in range(RETRIES)]
    wrong = [each for each in answers if not isinstance(each, Appended)]
    return [f"a retry is answered by {wrong[0]}"] if wrong else []
