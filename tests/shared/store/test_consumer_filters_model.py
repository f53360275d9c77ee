"""The filters that are written down, through any course of events, beside a plain table of them."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import pytest

from penstock.shared.store import consumer_filters
from penstock.shared.store.consumer_filters import (
    DEAD_BEFORE_START_MS,
    KEEP_DEAD_MS,
    LOOK_AGAIN_MS,
    SILENT_MS,
    ConsumerFilters,
)

MOST, MOST_CHARACTERS = 20, 200
WALL_MS = 1_800_000_000_000


class Filter(NamedTuple):
    expression: str
    version: int
    born_ms: int
    dead_ms: int = 0


class Plain:
    """What RocketMQ's rules say, with everything counted again at each step."""

    def __init__(self) -> None:
        self.filters: dict[tuple[str, str], Filter] = {}
        self.seen_ms: dict[tuple[str, str], int] = {}
        self.looked_ms = -LOOK_AGAIN_MS

    def register(self, key: tuple[str, str], expression: str, version: int, now_ms: int) -> None:
        old = self.filters.get(key)
        if old is not None:
            self.seen_ms[key] = now_ms
            is_same = expression == old.expression
            if version < old.version or version == old.version and not old.dead_ms:
                return
            if version == old.version or is_same:
                self.filters[key] = old._replace(version=version, dead_ms=0)
                return
        new = {**self.filters, key: Filter(expression, version, WALL_MS + now_ms)}
        if not self._fits(new):
            if now_ms - self.looked_ms < LOOK_AGAIN_MS:
                return
            self.looked_ms = now_ms
            dead = sorted(
                (e.dead_ms, *k) for k, e in self.filters.items() if e.dead_ms and k != key
            )
            for number, (_, *name) in enumerate(dead):
                if number >= len(dead) // 8 and self._fits(new):
                    break
                del self.filters[name[0], name[1]], new[name[0], name[1]]
        if self._fits(new):
            self.filters, self.seen_ms[key] = new, now_ms

    @staticmethod
    def _fits(filters: dict[tuple[str, str], Filter]) -> bool:
        characters = sum(len(each.expression) for each in filters.values())
        return len(filters) <= MOST and characters <= MOST_CHARACTERS

    def clean(self, now_ms: int) -> None:
        for key, each in list(self.filters.items()):
            dead_ms = each.dead_ms
            if not dead_ms and now_ms - self.seen_ms.get(key, now_ms) >= SILENT_MS:
                dead_ms = WALL_MS + now_ms
            if dead_ms and WALL_MS + now_ms - dead_ms >= KEEP_DEAD_MS:
                del self.filters[key]
            else:
                self.filters[key] = each._replace(dead_ms=dead_ms)

    def restart(self, now_ms: int) -> None:
        died_ms = WALL_MS + now_ms - DEAD_BEFORE_START_MS
        for key, each in self.filters.items():
            dead_ms = each.dead_ms or max(died_ms, each.born_ms)
            self.filters[key] = each._replace(dead_ms=dead_ms)
        self.seen_ms, self.looked_ms = {}, now_ms - LOOK_AGAIN_MS


@pytest.mark.parametrize("seed", range(8))
def test_any_course_of_events_leaves_what_the_rules_say(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(consumer_filters, "MAX_FILTERS", MOST)
    monkeypatch.setattr(consumer_filters, "MAX_EXPRESSION_BYTES", MOST_CHARACTERS)
    rng, plain, filters, now_ms = random.Random(seed), Plain(), ConsumerFilters({}), 0
    before = filters.encode()
    for _ in range(250):
        now_ms += rng.choice([0, 1, LOOK_AGAIN_MS - 1, LOOK_AGAIN_MS, SILENT_MS // 3, SILENT_MS])
        what = rng.choice(("register",) * 12 + ("clean", "clean", "restart", "a day"))
        filters.changed = False
        if what == "register":
            key = rng.choice("abc"), str(rng.randrange(15))
            expression, version = "x" * rng.choice([1, 2, 10, 30]), rng.randrange(4)
            filters.register(*key, expression, version, WALL_MS + now_ms, now_ms)
            plain.register(key, expression, version, now_ms)
        elif what == "restart":
            filters = ConsumerFilters(json.loads(filters.encode()))
            filters.began(WALL_MS + now_ms)
            plain.restart(now_ms)
        else:
            now_ms += rng.choice([KEEP_DEAD_MS - 1, KEEP_DEAD_MS]) if what == "a day" else 0
            filters.clean(WALL_MS + now_ms, now_ms)
            plain.clean(now_ms)
        found = {
            (each["topic"], each["consumerGroup"]): Filter(
                each["expression"], each["clientVersion"], each["bornTime"], each["deadTime"]
            )
            for each in filters.all()
        }
        assert found == plain.filters
        assert [*found] == sorted(found)
        assert all(each["dead"] == (each["deadTime"] > 0) for each in filters.all())
        after = filters.encode()
        assert filters.changed == (after != before)
        topics, before = json.loads(after)["filterDataByTopic"], after
        assert {*topics} == {topic for topic, _ in found}, "none without a filter"
