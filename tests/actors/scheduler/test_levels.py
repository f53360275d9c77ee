"""The delay levels: what they say of how far they are, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.record_layout import AT_MAGIC
from penstock.shared.layout import segment_name
from penstock.shared.messaging.delayed import Delay

pytestmark = pytest.mark.takes(3)


@pytest.mark.parametrize("lost", [(), (0, 7, 8, 18, 19)], ids=["whole", "lost"])
def test_what_a_level_calls_done_is_stored_at_any_moment_and_it_is_all_in_the_end(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    """Wherever a life ends, the next goes on from there. Looks and frames are short, so that some
    have their outcome while others are on their way. The writer dies amid them, or the log has lost
    some, which nobody waits for."""
    monkeypatch.setattr("penstock.actors.scheduler.levels.ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr("penstock.actors.scheduler.copies.MOST_IN_FRAME", 2)
    it = scene()
    level, has_died, seen = it.actor._levels[0], bool(lost), set()
    sent = [it.send(Delay(1)) for _ in range(20)]
    it.until(lambda: level.pending == 20, "their entries")
    places = [each.physical_offset for each in it.broker.stored(SCHEDULE_TOPIC, 0)]
    for number in lost:
        _overwrite_magic(it.broker.paths.commit_log, places[number])
    kept = [number for number in range(20) if number not in lost]
    it.broker.clock.advance(1000)

    def is_over() -> bool:
        nonlocal has_died
        done, stored = level.done, len(it.queue())
        assert done <= [*kept, 20][stored], "what is on its way may be lost"
        assert level.pending == 20 - done
        assert level.first_place() == [*places, -1][done]
        seen.add(done)
        if done > 6 and not has_died:
            has_died = True
            it.crash_writer()
        return done == 20

    it.until(is_over, "all of them")
    assert it.bodies() == [sent[number] for number in kept]
    assert len(seen) > 4, "else this shows nothing"
    counts = it.broker.positions
    it.until(lambda: counts["delivered"] + counts["undelivered"] == 20, "the counts", ms=50)
    assert counts["undelivered"] == len(lost)


def test_what_may_be_stored_is_sent_again_where_damage_keeps_the_writer_from_knowing(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice is better than never."""
    monkeypatch.setattr("penstock.actors.scheduler.levels.ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr("penstock.actors.scheduler.copies.MOST_IN_FRAME", 2)
    it = scene()
    level = it.actor._levels[0]
    sent = [it.send(Delay(1)) for _ in range(20)]
    it.until(lambda: level.pending == 20, "their entries")
    places = [each.physical_offset for each in it.broker.stored(SCHEDULE_TOPIC, 0)]
    lost = (0, 7, 8, 18, 19)
    for number in lost:
        _overwrite_magic(it.broker.paths.commit_log, places[number])
    it.broker.clock.advance(1000)
    it.until(lambda: level.done > 6, "some of them")
    it.crash_writer()
    it.until(lambda: level.done == 20, "all of them")
    assert set(it.bodies()) == {sent[number] for number in range(20) if number not in lost}
    counts = it.broker.positions
    it.until(lambda: counts["undelivered"] == len(lost), "the counts", ms=50)


def _overwrite_magic(log: Path, place: int) -> None:
    """Whoever reads there finds no record."""
    base = max(int(each.name) for each in log.iterdir() if int(each.name) <= place)
    with open(log / segment_name(base), "r+b") as file:
        file.seek(place - base + AT_MAGIC)
        file.write(bytes(4))
