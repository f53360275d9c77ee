"""Each producer is asked in its turn how a transaction ended, and nobody who has gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.actors.transactions import producers
from penstock.actors.transactions.producers import SILENT_MS, TRIES, Producers
from penstock.shared.errors import StoreUnavailable


def taken(asked: list[bytes], *gone: bytes) -> Callable[[bytes], bool]:
    """Whoever is asked is noted, and has heard it unless it has gone."""

    def send(peer: bytes) -> bool:
        asked.append(peer)
        return peer not in gone

    return send


def test_those_of_a_group_are_asked_in_turn_and_a_heartbeat_keeps_the_turn() -> None:
    found, asked = Producers(), list[bytes]()
    for peer in (b"a", b"b", b"c"):
        found.register("shop", peer, 0)
    found.register("other", b"d", 0)
    for at_ms in range(4):
        assert found.ask("shop", at_ms, taken(asked))
        found.register("shop", b"b", at_ms)
    assert asked == [b"a", b"b", b"c", b"a"] and len(found) == 4
    assert not found.ask("none", 0, taken(asked))


def test_one_question_is_put_to_three_at_most_and_whoever_has_gone_is_forgotten() -> None:
    found, asked = Producers(), list[bytes]()
    peers = [b"%d" % number for number in range(TRIES + 2)]
    for peer in peers:
        found.register("shop", peer, 0)
    assert not found.ask("shop", 0, taken(asked, *peers))
    assert asked == peers[:TRIES] and len(found) == 2
    assert found.ask("shop", 0, taken(asked, peers[TRIES])) and asked[TRIES:] == peers[TRIES:]
    assert len(found) == 1
    assert not found.ask("shop", 0, taken(asked, peers[-1])) and len(found) == 0
    assert asked[TRIES + 2 :] == peers[-1:], "it alone was left"


def test_one_is_silent_after_its_last_millisecond_and_not_in_it() -> None:
    found, asked = Producers(), list[bytes]()
    found.register("shop", b"a", 7)
    found.drop_silent(7 + SILENT_MS)
    assert found.ask("shop", 7 + SILENT_MS, taken(asked)) and asked == [b"a"]
    found.register("shop", b"b", 8)
    found.drop_silent(8 + SILENT_MS)
    assert len(found) == 1, "a is silent, and b is not yet"
    assert not found.ask("shop", 9 + SILENT_MS, taken(asked)) and asked == [b"a"]
    assert len(found) == 0


def test_no_more_are_registered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    found = Producers()
    found.register("shop", b"a", 0)
    found.register("other", b"b", 0)
    for group in ("shop", "third"):
        with pytest.raises(StoreUnavailable):
            found.register(group, b"c", 0)
    found.register("shop", b"a", SILENT_MS)  # who is there already takes no room
    found.drop_silent(SILENT_MS + 1)
    found.register("third", b"c", SILENT_MS + 1)
    assert len(found) == 2
