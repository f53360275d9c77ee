"""Completion: what a shell is offered at a place of the line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.embedded import Broker
from penstock.testing import SMALL_FILES


def _offered(*words: str) -> list[str]:
    """As bash asks: the last word is the one that is being typed."""
    line = " ".join(("penstock", *words))
    ran = subprocess.run(
        [sys.executable, "-c", "from penstock.cli.main import main; main()"],
        env={
            **os.environ,
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return [each.partition(",")[2] for each in ran.stdout.split()]


def test_commands_and_options_are_offered() -> None:
    assert _offered("con") == ["consume", "config", "context"]
    assert "--follow" in _offered("consume", "--f")
    assert _offered("store", "ver") == ["verify"]


def test_topics_and_groups_are_those_that_there_are(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with Broker(store, settings=SMALL_FILES, log=tmp_path / "log") as broker:
        for topic in ("orders", "orders-eu", "bills"):
            broker.producer().send(topic, b"1").result()
        with broker.group("billing", "orders", start="first") as member:
            assert member.poll(60.0)
        assert _offered("consume", "--store", store, "ord") == ["orders", "orders-eu"]
        at = broker.endpoints["produce"]
        assert _offered("consume", "--endpoint", at, "b") == ["bills"]
        assert _offered("groups", "describe", "--store", store, "bil") == ["billing"]
        # one that has had no message is what one is about to send to
        with broker.producer() as producer:
            producer.create_topic("orders-new", 1)
        assert _offered("consume", "--store", store, "orders-") == ["orders-eu", "orders-new"]
    # of a broker that is not there: topics by the store's files, and no word else
    assert _offered("consume", "--store", store, "b") == ["bills"]
    assert _offered("groups", "describe", "--store", store, "bil") == []
    assert _offered("consume", "--store", str(tmp_path / "nowhere"), "b") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "completion", shell]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and f"{shell}_complete" in ran.stdout
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=ran.stdout, capture_output=True, text=True)
        assert (read.returncode, read.stderr) == (0, ""), "the shell understands it"
