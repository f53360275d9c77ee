"""Lines for people, and the same as objects for programs."""

from __future__ import annotations

import json

import pytest

from penstock.shared.process.log_line import log_line


def test_a_line_has_its_time_and_who_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_LOG", raising=False)
    log_line(1700, "writer", "the disk is full", generation=2, offset=9)
    assert capsys.readouterr().err == "1970-01-01T00:00:01.700Z penstock writer: the disk is full\n"


def test_as_json_it_is_one_object_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG", "json")
    log_line(1700, "writer", "two\nlines", level="error", generation=2, offset=9)
    log_line(0, "supervisor", "ready")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {
        "time": "1970-01-01T00:00:01.700Z",
        "level": "error",
        "actor": "writer",
        "generation": 2,
        "offset": 9,
        "message": "two\nlines",
    }
    assert (second["level"], second["generation"], second["offset"]) == ("info", None, None)
