"""RocketMQ's JSON files: the version before is kept, and what a crash between two files leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.shared.files import durable
from penstock.shared.store.rocketmq_json import (
    count_change,
    encode_document,
    encode_object,
    encode_value,
    load_document,
    save_document,
)


def test_the_version_before_is_kept_and_read_where_the_file_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "config" / "topics.json"
    save_document(file, encode_document({"version": 1}))
    save_document(file, encode_document({"version": 2}))
    assert load_document(file, dict) == {"version": 2}
    file.write_bytes(b"{")
    assert load_document(file, dict) == {"version": 1}


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_file_does_not_take_the_place_of_the_copy_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    file = tmp_path / "topics.json"
    save_document(file, encode_document({"version": 1}))
    save_document(file, encode_document({"version": 2}))
    file.write_bytes(broken)

    def crash(path: Path, content: bytes) -> None:
        if path == file:
            raise KeyboardInterrupt
        durable.replace_file(path, content)

    monkeypatch.setattr("penstock.shared.store.rocketmq_json.replace_file", crash)
    with pytest.raises(KeyboardInterrupt):
        save_document(file, encode_document({"version": 3}))
    assert load_document(file, dict) == {"version": 1}


def test_what_was_saved_last_is_kept_only_where_the_file_has_it_still(tmp_path: Path) -> None:
    file, copy = tmp_path / "topics.json", tmp_path / "topics.json.bak"
    first, second, third = (encode_document({"version": n}) for n in range(3))
    save_document(file, first)
    save_document(file, second, before=first)
    assert copy.read_bytes() == first
    file.write_bytes(b"{")  # somebody else's
    save_document(file, third, before=second)
    assert copy.read_bytes() == first and file.read_bytes() == third


@pytest.mark.parametrize(
    ("before", "counter"),
    [
        ({}, 1),
        ({"dataVersion": {"stateVersion": 3, "counter": 7}}, 8),
        ({"dataVersion": {"stateVersion": 3}}, 1),
        ({"dataVersion": {"stateVersion": 3, "counter": "7"}}, 1),
        ({"dataVersion": "by hand"}, 1),
    ],
)
def test_each_change_is_counted_as_rocketmq_does(before: dict[str, Any], counter: int) -> None:
    state = 3 if isinstance(before.get("dataVersion"), dict) else 0
    count_change(before, 5)
    assert before == {
        "dataVersion": {"stateVersion": state, "counter": counter, "timestamp": 5},
    }


@pytest.mark.parametrize("document", [{}, {"b": {"x": [1, {"y": 2}]}, "a": "\n\u4e2d"}, {"c": {}}])
def test_an_object_of_values_that_are_encoded_already_looks_the_same(
    document: dict[str, Any],
) -> None:
    texts = {key: encode_value(value) for key, value in document.items()}
    assert encode_object(texts) == encode_value(document)
