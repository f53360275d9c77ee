"""When a request is asked again, and when nobody has answered for too long; what is then told."""

from __future__ import annotations

import pytest

from penstock.client.core.timeouts import MAX_REPEAT_MS, REPEAT_MS, Repeats, Timeouts

TIMEOUT_MS = 10_000


def asked_at(repeats: Repeats, until_ms: int, begun_ms: int = 0) -> list[int]:
    """When the request is sent again by one who looks when `wait_ms` says so, and only then."""
    now_ms, found = begun_ms, []
    while (wait_ms := repeats.wait_ms(now_ms)) + now_ms <= until_ms:
        now_ms += wait_ms
        if wait_ms:
            assert not repeats.take_due(now_ms - 1)
        if repeats.take_due(now_ms):
            found.append(now_ms)
        elif repeats.is_silent(now_ms):
            break
    return found


def test_repeats_grow_rare_where_a_lost_connection_is_heard_of_and_stay_frequent_elsewhere() -> (
    None
):
    rare, often = (Repeats(TIMEOUT_MS, hears_losses=hears) for hears in (True, False))
    for each in (rare, often):
        each.begin(1000)
        assert not each.is_rare and each.wait_ms(1000) == REPEAT_MS
    assert asked_at(rare, 11_000, 1000) == [1200, 1600, 2400, 4000, 6500, 9000]
    assert rare.is_rare
    assert asked_at(often, 2000, 1000) == [1200, 1400, 1600, 1800, 2000]
    assert not often.is_rare


def test_after_a_lost_connection_and_for_another_request_the_pause_is_short_again() -> None:
    repeats = Repeats(TIMEOUT_MS, hears_losses=True)
    repeats.begin(0)
    assert asked_at(repeats, 1500) == [200, 600, 1400] and repeats.is_rare
    repeats.soon()
    assert not repeats.is_rare and repeats.wait_ms(1500) == 100
    assert repeats.take_due(1600) and repeats.is_rare
    repeats.begin(1700)
    assert not repeats.is_rare and repeats.wait_ms(1700) == REPEAT_MS
    assert repeats.take_due(1900) and repeats.is_rare
    repeats.not_sent(2000)
    assert not repeats.is_rare and repeats.wait_ms(2000) == 10
    assert not repeats.take_due(2009) and repeats.take_due(2010)


def test_the_pause_never_grows_beyond_the_longest() -> None:
    repeats = Repeats(10 * TIMEOUT_MS, hears_losses=True)
    repeats.begin(0)
    found = asked_at(repeats, 60_000)
    pauses = [after - before for before, after in zip(found, found[1:], strict=False)]
    assert pauses[:3] == [400, 800, 1600] and {*pauses[3:]} == {MAX_REPEAT_MS}


def test_nobody_is_silent_before_the_timeout_and_then_once_for_each() -> None:
    repeats = Repeats(TIMEOUT_MS, hears_losses=False)
    repeats.begin(5)
    for now_ms in range(5, 5 + TIMEOUT_MS + 1, REPEAT_MS):
        repeats.take_due(now_ms)
        assert not repeats.is_silent(now_ms)
    assert not repeats.is_silent(5 + TIMEOUT_MS)
    assert repeats.wait_ms(5 + TIMEOUT_MS) == 1
    assert repeats.is_silent(6 + TIMEOUT_MS)
    assert not repeats.is_silent(6 + TIMEOUT_MS), "the next one is told after as long again"


@pytest.mark.parametrize("away_ms", [0, REPEAT_MS, 2 * REPEAT_MS])
def test_a_short_absence_of_the_asker_counts_as_the_brokers_silence(away_ms: int) -> None:
    repeats = Repeats(1000, hears_losses=False)
    repeats.begin(0)
    repeats.take_due(1001 - away_ms)
    assert repeats.is_silent(1001)


def test_an_absence_of_the_asker_is_no_silence_of_the_broker() -> None:
    repeats = Repeats(1000, hears_losses=False)
    repeats.begin(0)
    assert not repeats.is_silent(5000), "it was asked 200 ms long in all that time"
    # the rest of the timeout counts from then on
    repeats.take_due(5000)
    assert not repeats.is_silent(5400)
    repeats.take_due(5400)
    repeats.take_due(5600)
    assert not repeats.is_silent(5800)
    assert repeats.is_silent(5801)


@pytest.mark.parametrize(("may_be_stored", "words"), [(True, "may be stored"), (False, "")])
@pytest.mark.parametrize(("connected", "where"), [(True, ""), (False, "there is no connection")])
def test_a_caller_is_told_what_was_waited_for_and_from_whom(
    may_be_stored: bool, words: str, connected: bool, where: str
) -> None:
    told = Timeouts("tcp://h:1", 300)
    told.connected = connected
    message = told.message("the broker has not acknowledged a message", may_be_stored)
    assert "within 300 ms" in message.what and str(message.value).startswith("tcp://h:1")
    assert ("no connection" in str(message.value)) != connected and where in str(message.value)
    assert ("may be stored" in message.hint) == may_be_stored and words in message.hint
    assert "1 message has no outcome" in told.flush(1, 2).what
    assert "2,000 messages have no outcome" in told.flush(2000, 2).what
