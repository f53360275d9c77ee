"""Values of options: units where a key has one, and ranges that are checked first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("transient_store_pool_bytes=64MiB", 64 << 20),
        ("transient_store_pool_bytes=0.0625 GiB", 64 << 20),
        ("max_message_size_bytes=1MB", 10**6),
        ("max_queues=1_000", 1000),
        ("sync_flush_timeout_ms=10s", 10_000),
        ("sync_flush_timeout_ms=1.5s", 1500),
        ("sync_flush_timeout_ms=2m", 120_000),
        ("file_reserved_time_h=3d", 72),
        ("disk_max_used_space_ratio_percent=70%", 70),
        ("message_index_enable=false", False),
    ],
)
def test_a_value_may_have_a_unit_wherever_it_comes_from(
    command: Command, tmp_path: Path, setting: str, value: object
) -> None:
    key, _, text = setting.partition("=")
    file = tmp_path / "mine.toml"
    has_unit = not text.replace("_", "").isdigit() and text != "false"
    file.write_text(f"{key} = '{text}'" if has_unit else f"{key} = {text}")
    variable = {**os.environ, f"PENSTOCK_BROKER_{key.upper()}": text}
    for done in (
        command("config", "show", key, "--set", setting, "-o", "json"),
        command("config", "show", key, "--config", file, "-o", "json"),
        command("config", "show", key, "-o", "json", env=variable),
    ):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {key: value}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("flush_disk_type=snyc", "sync or async"),
        ("transient_store_pool_bytes=16M", "KiB, MiB"),
        ("transient_store_pool_bytes=16s", "KiB, MiB"),
        ("sync_flush_timeout_ms=16MiB", "ms, s, m, h, d"),
        ("file_reserved_time_h=90m", "whole hours"),
        ("message_index_enable=yes", "true or false"),
        ("max_queues=many", "a whole number"),
        ("sync_flush_timeout_ms=99999999999999d", "ms, s, m, h, d"),
    ],
)
def test_a_value_that_is_none_says_what_there_is(command: Command, setting: str, said: str) -> None:
    done = command("config", "show", "--set", setting)
    assert done.returncode == 2 and said in done.stderr and setting.split("=")[1] in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "chaos --rounds 0",
        "chaos --rounds -1",
        "chaos --hits 0",
        "chaos --minutes 0",
        "chaos --minutes nan",
        "chaos --minutes inf",
        "chaos --seed -1",
        "chaos --faults kills,",
        "bench restart --gib nan",
        "bench restart --gib 1,-1",
        "bench produce --seconds inf",
        "bench produce --seconds nan",
        "bench produce --size -1",
        "bench latency --rate 0",
        "bench index --keys 0",
        "bench core --size -5",
        "consume t --timeout -1",
        "consume t --timeout 0",
        "produce t --timeout nan",
        "produce t --timeout inf",
        "produce t --timeout soon",
        "produce t --queue -1",
        "produce t --queue 99999999999999999999",
        "consume t --max 0",
        "consume t --max 99999999999999999999",
        "topics create t --queues 0",
        "topics create t --queues 99999",
        "query key t k --max 0",
        "store info . --index-slots -1",
        "store info . --index-items 0",
        "store verify . --index-slots 0",
        "store inspect . --offset -1",
        "up --produce-port 99999",
        "up --consume-port -1",
        "query id zzz --timeout -3",
    ],
)
def test_a_number_that_makes_no_sense_is_refused_with_its_range(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert ended.value.code == 2 and said.out == ""
    assert line.startswith("error: [INVALID_ARGUMENT]") and line.endswith("--help")
    assert list(tmp_path.iterdir()) == []


def test_chaos_without_a_compiler_leaves_out_what_needs_one(
    command: Command, tmp_path: Path
) -> None:
    bare = {**os.environ, "PATH": str(tmp_path)}
    place = tmp_path / "place"
    place.mkdir()
    words = ("chaos", "--rounds", "1", "--seed", "7", "--place", place, "--faults")
    done = command(*words, "power,frozen", env=bare)
    assert done.returncode == 0, done.stderr
    assert "left out, for want of a C compiler: power" in done.stderr
    assert "nothing broken" in done.stdout
    refused = command(*words, "power,disk", env=bare)
    assert refused.returncode == 2 and "MISSING_DEPENDENCY" in refused.stderr
