"""The file of a broadcasting member: RocketMQ's form, whole or typed errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.groups.local_offsets import (
    HOME_VARIABLE,
    LocalOffsets,
    decode_offsets,
    encode_offsets,
    offsets_file,
)
from penstock.shared.errors import StoreDamaged, StoreUnavailable

# As RocketMQ's client lays it out.
WRITTEN = b"""{
\t"offsetTable":{
\t\t{
\t\t\t"brokerName":"b",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:12
\t}
}"""
TOPICS = st.text("abc%-_", min_size=1, max_size=8)


def test_the_form_is_rocketmqs() -> None:
    assert encode_offsets({("orders", 0): 12}, "b") == WRITTEN
    assert decode_offsets(WRITTEN) == {("orders", 0): 12}
    compact = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"a"}:5}}'
    assert decode_offsets(compact) == {("a", 3): 5}


@given(st.dictionaries(st.tuples(TOPICS, st.integers(0, 99)), st.integers(0, 1 << 62)))
def test_what_was_written_is_read(offsets: dict[tuple[str, int], int]) -> None:
    assert decode_offsets(encode_offsets(offsets, 'name "x"')) == offsets


def test_a_broken_file_falls_back_to_its_copy_and_then_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a" / "g" / "offsets.json"
    kept = LocalOffsets(file)
    kept.save({("orders", 0): 5}, "b", 10_000)
    kept.save({("orders", 0): 9}, "b", 20_000)
    assert LocalOffsets(file).known == {("orders", 0): 9}
    file.write_bytes(b"{ no")
    assert LocalOffsets(file).known == {("orders", 0): 5}
    for broken in (b"{ no", WRITTEN.replace(b"0", b"null"), WRITTEN.replace(b"queueId", b"q")):
        file.with_name("offsets.json.bak").write_bytes(broken)
        with pytest.raises(StoreDamaged, match="mv "):
            LocalOffsets(file)


def test_it_is_not_written_more_often_than_is_said(tmp_path: Path) -> None:
    kept = LocalOffsets(file := tmp_path / "offsets.json")
    kept.save({("orders", 0): 5}, "b", 10_000)
    kept.save({("orders", 0): 6}, "b", 14_999)
    assert LocalOffsets(file).known == {("orders", 0): 5}
    kept.save({("orders", 0): 6}, "b", 14_999, True)
    assert LocalOffsets(file).known == {("orders", 0): 6}


def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="cannot be kept"):
        LocalOffsets(tmp_path / "file" / "offsets.json")
    kept = LocalOffsets(tmp_path / "later" / "offsets.json")
    (tmp_path / "later").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="cannot be kept"):
        kept.save({("orders", 0): 5}, "b", 10_000)


def test_a_user_without_a_home_is_told_to_name_a_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offsets_file("c", "g") == tmp_path / ".rocketmq_offsets" / "c" / "g" / "offsets.json"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(StoreUnavailable, match=f"export {HOME_VARIABLE}=DIRECTORY"):
        offsets_file("c", "g")
    monkeypatch.setenv(HOME_VARIABLE, "there")
    assert offsets_file("c", "g") == Path("there", "c", "g", "offsets.json")
