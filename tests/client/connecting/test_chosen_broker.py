"""Which broker is meant if none is named: the first source that names one decides."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.connecting import contexts
from penstock.client.connecting.chosen_broker import meant_broker
from penstock.client.connecting.contexts import (
    Context,
    Contexts,
    contexts_file,
    load_contexts,
    save_contexts,
)
from penstock.shared.errors import ConfigError, InvalidArgument
from penstock.shared.memory import run_directory

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


@pytest.fixture(autouse=True)
def nothing_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_path: Path
) -> Iterator[None]:
    """A user who has saved nothing, in an empty directory, on a machine without brokers."""
    for name in ("PENSTOCK_CONTEXT", "PENSTOCK_ENDPOINT", "PENSTOCK_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(run_directory, "_MEMORY", short_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield


def run_on(store: Path, places: Path, number: int) -> None:
    """What a run leaves in shared memory for others to find its store by."""
    directory = places / f"penstock-{number:016x}"
    directory.mkdir()
    (directory / "store").write_bytes(os.fsencode(store))


def test_each_word_of_the_order_goes_over_those_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_path: Path, broker: Any
) -> None:
    assert meant_broker() == (None, Path("store"), "default")
    run_on(broker.store, short_path, 1)
    run_on(tmp_path / "was killed", short_path, 2)
    (short_path / "penstock-and no run").mkdir()
    assert meant_broker() == (None, broker.store, "alone")
    Path("store").mkdir()
    assert meant_broker() == (None, Path("store"), "directory")
    saved = {"here": Context(endpoint=HERE), "there": Context(store="/there")}
    save_contexts(contexts_file(), Contexts("here", saved))
    assert meant_broker() == (HERE, None, "context here")
    monkeypatch.setenv("PENSTOCK_CONTEXT", "there")
    assert meant_broker() == (None, Path("/there"), "context there")
    monkeypatch.setenv("PENSTOCK_CONTEXT", "none")
    assert meant_broker() == (None, Path("store"), "directory")
    Path("store").rmdir()
    assert meant_broker() == (None, Path("store"), "default"), "and nobody was looked for"
    monkeypatch.setenv("PENSTOCK_STORE", "/variable")
    assert meant_broker() == (None, Path("/variable"), "environment")
    with penstock.using(THERE):
        assert meant_broker() == (THERE, None, "using")
        with penstock.using(store="inner"):
            assert meant_broker() == (None, Path("inner").absolute(), "using")
        assert meant_broker().endpoint == THERE
    assert meant_broker().origin == "environment"


def test_of_several_brokers_none_is_taken(
    short_path: Path, broker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_on(broker.store, short_path, 1)
    link = tmp_path / "the same by another name"
    link.symlink_to(broker.store)
    run_on(link, short_path, 2)
    assert meant_broker().origin == "default"


def test_connect_uses_it_and_finds_the_broker(broker: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(penstock.using(broker.consume))
        connected = stack.enter_context(penstock.connect())
        connected.producer().create_topic("meant", 2)
        assert connected.topics()["meant"] == 2
    with penstock.using(store=broker.store), penstock.connect() as connected:
        assert connected.topics()["meant"] == 2


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONTEXT", "shops")
    save_contexts(contexts_file(), Contexts("", {"shop": Context(endpoint=HERE)}))
    with pytest.raises(InvalidArgument, match="Did you mean shop"):
        penstock.connect()
    monkeypatch.setenv("PENSTOCK_ENDPOINT", HERE)
    monkeypatch.setenv("PENSTOCK_STORE", "s")
    with pytest.raises(InvalidArgument, match="unset PENSTOCK_ENDPOINT"):
        penstock.connect()
    with pytest.raises(InvalidArgument, match="lacks|tcp://localhost:20911"):
        penstock.using("localhost:20911")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"current": 5}', b'{"more": 1}', b"\xff"])
def test_a_file_that_is_damaged_is_named_with_its_remedy(damage: bytes) -> None:
    file = contexts_file()
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    with pytest.raises(ConfigError, match="contexts.json") as caught:
        load_contexts(file)
    assert "mv " in caught.value.hint


def test_the_file_is_its_users_alone_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = contexts_file()
    assert file == tmp_path / "config" / "penstock" / "contexts.json"
    wanted = Contexts("a", {"a": Context(endpoint=HERE), "b": Context(store="/ü")})
    save_contexts(file, wanted)
    file.chmod(0o644)
    save_contexts(file, wanted)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_contexts(file) == wanted
    assert [each.name for each in file.parent.iterdir()] == ["contexts.json"]


@pytest.mark.parametrize("name", ["", "none", "a b", "../a", ".a", "a" * 65, "ü"])
def test_a_context_has_a_plain_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no context can have this name"):
        contexts.check_name(name)
