"""Looks are views of a broker, by name: the page asks over HTTP, and `penstock top` directly.

A look takes words, as a URL's query has them, and returns JSON values, or the steps to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.actors.monitor import board, disk, messages, topics
from penstock.actors.monitor.history import History
from penstock.actors.monitor.overview import overview
from penstock.actors.monitor.reading import Reading
from penstock.shared.recovery.history import load_recoveries

Look = Callable[[dict[str, str]], Any]


def looks(reading: Reading, history: History) -> dict[str, Look]:
    page_of = topics.page_of
    return {
        "overview": lambda query: overview(reading, history),
        "history": lambda query: _rows_after(history, query),
        "topics": lambda query: topics.list_topics(reading, page_of(query)),
        "topic": lambda query: topics.describe_topic(
            reading, query.get("name", ""), page_of(query)
        ),
        "groups": lambda query: topics.list_groups(reading, page_of(query), query.get("topic", "")),
        "group": lambda query: topics.describe_group(
            reading, query.get("name", ""), page_of(query)
        ),
        "dead-letters": lambda query: topics.list_dead_letters(reading, page_of(query)),
        "message": lambda query: messages.find_messages(reading, query),
        "messages": lambda query: messages.list_messages(reading, query),
        "files": lambda query: disk.disk(reading, history),
        "recoveries": lambda query: msgspec.to_builtins(load_recoveries(reading.paths)),
        "board": lambda query: board.grafana_board(),
    }


def _rows_after(history: History, query: dict[str, str]) -> list[dict[str, Any]]:
    """All rows, or those after `since`, in ms since 1970: an open page asks for new ones."""
    since_ms = messages.number_of(query, "since") if "since" in query else 0
    return [row._asdict() for row in history.rows() if row.at_ms > since_ms]
