"""A store with a bit of everything, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, pack_host
from penstock.shared.layout import segment_name

Builder = Callable[..., Path]
Maker = Callable[..., Record]
Command = Callable[..., tuple[int, str, str]]
RETRY = "%RETRY%" + "g" * 130


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, captured.out, captured.err

    return run


@pytest.fixture
def root(store_builder: Builder, make_record: Maker) -> Path:
    """60 records over several segments: tags, IPv6 hosts, a retry topic, binary bodies."""
    tags = encode_properties({"TAGS": "中文标签", "KEYS": "k1 k2", "UNIQ_KEY": "0A"})
    forms: list[dict[str, Any]] = [
        {"properties": tags},
        {"born_host": pack_host("2001:db8::1", 1), "queue_id": 1, "reconsume_times": 2},
        {"topic": RETRY, "body": b"\xff\x00"},
    ]
    return store_builder([make_record(**forms[number % 3]) for number in range(60)])


@pytest.fixture
def flip(root: Path) -> Callable[[], None]:
    """Damage the body of the first record."""

    def change() -> None:
        with (root / "commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(90)
            file.write(b"\xff")

    return change
