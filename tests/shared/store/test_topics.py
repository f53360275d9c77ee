"""config/topics.json: RocketMQ's own form is read, kept, and written so that RocketMQ reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument, StoreDamaged
from penstock.shared.store.rocketmq_json import parse_fastjson
from penstock.shared.store.topics import TopicConfig, Topics, load_topics, save_topics

# as RocketMQ 5.3 writes it, shortened; fastjson leaves integer keys bare
ROCKETMQ = """{
\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1785258424486},
\t"topicConfigTable":{
\t\t"orders":{
\t\t\t"attributes":{},"order":false,"perm":6,"readQueueNums":16,
\t\t\t"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,"writeQueueNums":8
\t\t},
\t\t"RMQ_SYS_TRANS_HALF_TOPIC":{"perm":6,"readQueueNums":1,"writeQueueNums":1}
\t},
\t"mappings":{0:{1:"a",-2:"{3:4}"},10 : "b,5:"}
}"""

keys = st.one_of(st.integers(-99, 99), st.text(max_size=8))
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def fastjson(tree: object, space: str) -> str:
    """As fastjson writes it: integer keys bare."""
    if isinstance(tree, dict):
        entries = (
            f"{space}{key if isinstance(key, int) else json.dumps(key)}{space}:"
            f"{space}{fastjson(value, space)}"
            for key, value in tree.items()
        )
        return "{" + ",".join(entries) + space + "}"
    if isinstance(tree, list):
        return "[" + ",".join(space + fastjson(value, space) for value in tree) + "]"
    return json.dumps(tree)


def quoted(tree: object) -> object:
    """The tree with its integer keys as texts, the later of two equal ones winning."""
    if isinstance(tree, dict):
        return {str(key): quoted(value) for key, value in tree.items()}
    return [quoted(value) for value in tree] if isinstance(tree, list) else tree


@given(trees, st.sampled_from(["", " ", "\n\t"]))
def test_bare_integer_keys_are_read_as_texts_and_nothing_else_changes(
    tree: object, space: str
) -> None:
    assert parse_fastjson(fastjson(tree, space)) == quoted(tree)


@pytest.mark.parametrize(
    "text", ['{1:"a', "{1.5:2}", "{a:1}", "[1:2]", "", "{1:2,}", '{"a\\":1}', "{--1:2}"]
)
def test_what_is_neither_json_nor_fastjson_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_fastjson(text)


def test_strings_that_look_like_keys_are_left_alone() -> None:
    assert parse_fastjson('{"{1:2":"x,3:","\\",4:":5}') == {"{1:2": "x,3:", '",4:': 5}


# --- topics ---


def test_a_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(ROCKETMQ)
    topics = load_topics(file)
    assert topics.all() == {"RMQ_SYS_TRANS_HALF_TOPIC": 1, "orders": 8}
    assert (topics.queues("orders"), topics.read_queues("orders")) == (8, 16)
    assert (topics.queues("none"), topics.read_queues("none")) == (0, 0)


def test_what_is_not_known_here_is_kept_when_the_file_is_written(tmp_path: Path) -> None:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(ROCKETMQ)
    topics = load_topics(file)
    topics.put("new", 3, now_ms=77)
    save_topics(file, topics)
    before, after = parse_fastjson(ROCKETMQ), json.loads(file.read_text())
    assert after["mappings"] == before["mappings"]
    assert after["topicConfigTable"]["orders"] == before["topicConfigTable"]["orders"]
    assert after["dataVersion"] == {"counter": 3, "stateVersion": 0, "timestamp": 77}
    assert after["topicConfigTable"]["new"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "new",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert load_topics(file).all() == topics.all()


def test_changes_are_counted_from_the_first_topic_on() -> None:
    topics = Topics()
    for number in (1, 2):
        topics.put(f"t{number}", 1, now_ms=number)
        version = json.loads(topics.encode())["dataVersion"]
        assert version == {"counter": number, "stateVersion": 0, "timestamp": number}


def test_a_topic_that_was_shrunk_stays_readable_as_far_as_it_was() -> None:
    topics = Topics(parse_fastjson(ROCKETMQ))
    topics.put("orders", 10, 1)
    assert (topics.queues("orders"), topics.read_queues("orders")) == (10, 16)
    topics.put("orders", 20, 1)
    assert (topics.queues("orders"), topics.read_queues("orders")) == (20, 20)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "a b", "ü", "x" * 128])
def test_a_name_that_is_no_topic_is_refused(topic: str) -> None:
    topics = Topics()
    with pytest.raises(InvalidArgument):
        topics.put(topic, 1, 1)
    assert topics.all() == {}


def test_the_version_before_is_kept_and_stands_in_for_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    topics = Topics()
    for number in (1, 2):
        topics.put(f"t{number}", number, 1)
        save_topics(file, topics)
    assert load_topics(file).all() == {"t1": 1, "t2": 2}
    for broken in ("", "  \n", "{", "[]", "nonsense"):
        file.write_text(broken)
        assert load_topics(file).all() == {"t1": 1}, broken
    file.unlink()
    assert load_topics(file).all() == {"t1": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"topicConfigTable":[]}',
        b'{"topicConfigTable":null}',
        b'{"topicConfigTable":{"t":8}}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_cannot_be_read_is_damage_and_not_no_topics(
    tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "topics.json"
    file.write_bytes(raw)
    with pytest.raises(StoreDamaged, match=r"topics\.json"):
        load_topics(file)
    assert caplog.messages == []
    file.with_name("topics.json.bak").write_text(ROCKETMQ)
    assert load_topics(file).queues("orders") == 8
    (said,) = caplog.messages
    assert f"{file}.bak is used in place of {file}" in said


def test_no_file_is_no_topics(tmp_path: Path) -> None:
    assert load_topics(tmp_path / "topics.json").all() == {}
    assert load_topics(tmp_path / "no" / "topics.json").all() == {}
    (tmp_path / "file").write_text("")
    assert load_topics(tmp_path / "file" / "topics.json").all() == {}


@pytest.mark.parametrize("nums", [None, "8", [], {}])
def test_a_number_of_queues_that_is_none_counts_as_no_queue(nums: object) -> None:
    topics = Topics({"dataVersion": None, "topicConfigTable": {"t": {"writeQueueNums": nums}}})
    assert topics.queues("t") == 0
    topics.put("t", 2, 5)
    assert topics.queues("t") == 2


changes = st.lists(
    st.tuples(st.sampled_from(["orders", "a", "b", "RMQ_SYS_TRANS_HALF_TOPIC"]), st.integers(0, 9)),
    max_size=12,
)


@given(changes)
def test_queues_are_counted_along_with_every_change(found: list[tuple[str, int]]) -> None:
    topics = Topics(parse_fastjson(ROCKETMQ))
    for topic, queues in found:
        if queues:
            topics.put(topic, queues, 1)
        elif topic in topics.names():
            topics.remove(topic, 1)
        configs = topics.configs().values()
        assert topics.queue_count == sum(max(c.queues, c.read_queues) for c in configs)


def test_to_count_queues_takes_as_long_with_many_topics_as_with_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a thousand groups that begin at once each has a topic made, and each asks."""
    topics, looks = Topics(), []
    for number in range(500):
        topics.put(f"t{number}", 4, 1)
    monkeypatch.setattr(Topics, "_number", lambda self, topic, key: looks.append(topic) or 1)
    assert topics.queue_count == 2000 and len(looks) < 10


def test_what_is_missing_of_a_topic_has_its_default_and_others_are_told_apart() -> None:
    usual = {"readQueueNums": 4, "writeQueueNums": 4}
    table = {
        "usual": usual,
        "shrunk": {"readQueueNums": 4, "writeQueueNums": 2},
        "read only": usual | {"perm": 4, "order": True, "topicSysFlag": 3},
        "odd": usual | {"perm": "6", "order": 1, "attributes": {"a": 5}, "topicFilterType": "M"},
        "bare": {"attributes": []},
    }
    topics = Topics({"topicConfigTable": table})
    assert topics.configs() == {
        "bare": TopicConfig(0, 0),
        "odd": TopicConfig(4, 4, 6, False, {"a": "5"}, "M", 0),
        "read only": TopicConfig(4, 4, 4, True, {}, "SINGLE_TAG", 3),
        "shrunk": TopicConfig(4, 2, 6, False, {}, "SINGLE_TAG", 0),
        "usual": TopicConfig(4, 4, 6, False, {}, "SINGLE_TAG", 0),
    }
    assert list(topics.configs()) == list(topics.all()) == sorted(table)
    assert topics.others() == {"shrunk": (4, 6), "read only": (4, 4)}
    assert topics.get("none") is None and topics.queue_count == 16
