"""Queries take turns: none is worked at for longer than a turn, however many wait."""

from __future__ import annotations

import itertools
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.index.query_turns import TURN_MS, QueryTurns
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.wire.messages import QueryById


def test_a_turn_ends_when_its_time_is_over_and_the_next_one_goes_on(tmp_path: Path) -> None:
    create_positions(tmp_path / "positions")
    positions = Positions(tmp_path / "positions")
    times = itertools.count(0, TURN_MS)
    config = Config(store_path_root_dir=str(tmp_path))
    turns = QueryTurns[int](config, positions, lambda offset, size: b"", lambda: next(times))
    for peer in (1, 2):
        turns.add(peer, QueryById(peer, "no id"))
    # each step takes as long as a turn may
    ended = [turns.work() for _ in range(4)]
    assert [[peer for peer, _, _ in each] for each in ended] == [[], [], [1], [2]]
    assert all(isinstance(answer, PenstockError) for each in ended for _, _, answer in each)
    assert not turns.waiting
    turns.close()
    positions.close()
