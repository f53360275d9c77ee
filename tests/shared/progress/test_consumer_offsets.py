"""consumerOffset.json and subscriptionGroup.json: RocketMQ's text is read, and what is written back
has all that it had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.progress.group_journal import (
    MAGIC,
    Gone,
    Head,
    MemberRow,
    Row,
    Saving,
    decode_journal,
    encode_blocks,
    encode_journal,
)
from penstock.shared.progress.subscription_groups import DEFAULTS, SubscriptionGroups
from penstock.shared.store.rocketmq_json import (
    encode_document,
    load_document,
    parse_fastjson,
    save_document,
)
from penstock.shared.wire.group_messages import SubscriptionData

# As a RocketMQ broker writes it.
OFFSETS = """{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"groupTopicMap":{"CG":["orders"]},
\t"offsetTable":{
\t\t"%RETRY%CG@CG":{0:2
\t\t},
\t\t"orders@CG":{0:12,3:7
\t\t},
\t\t"orders@CG@broadcast":{0:1
\t\t}
\t}
}"""
GROUPS = """{
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"forbiddenTable":{"CG":{"orders":4}},
\t"subscriptionGroupTable":{
\t\t"CG":{
\t\t\t"attributes":{},
\t\t\t"brokerId":0,
\t\t\t"consumeEnable":false,
\t\t\t"groupName":"CG",
\t\t\t"retryMaxTimes":3,
\t\t\t"unheardOf":[1]
\t\t}
\t}
}"""

OFFSET_TABLES = st.dictionaries(
    st.sampled_from(("CG", "G2")),
    st.dictionaries(
        st.sampled_from(("orders", "%RETRY%CG")),
        st.dictionaries(st.integers(0, 1023), st.integers(0, 2**60), min_size=1),
        min_size=1,
    ),
)


def test_rocketmqs_offsets_are_read_and_kept_beside_what_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    file.parent.mkdir()
    file.write_text(OFFSETS)
    found = load_document(file, ConsumerOffsets)
    assert sorted(found.rows()) == [
        ("CG", "%RETRY%CG", 0, 2),
        ("CG", "orders", 0, 12),
        ("CG", "orders", 3, 7),
    ]
    found.replace({"CG": {"orders": {0: 13}}, "G2": {"t": {5: 1}}}, 42)
    save_document(file, found.encode())
    saved = parse_fastjson(file.read_text())
    assert saved["offsetTable"] == {
        "orders@CG": {"0": 13},
        "orders@CG@broadcast": {"0": 1},
        "t@G2": {"5": 1},
    }
    assert saved["groupTopicMap"] == {"CG": ["orders"], "G2": ["t"]}
    assert saved["dataVersion"] == {"counter": 8, "stateVersion": 0, "timestamp": 42}
    assert file.with_name(file.name + ".bak").read_text() == OFFSETS


@given(OFFSET_TABLES)
def test_offsets_come_back_with_the_digest_that_was_written_down(
    table: dict[str, dict[str, dict[int, int]]],
) -> None:
    written = ConsumerOffsets()
    written.replace(table, 1)
    content = written.encode()
    found = ConsumerOffsets(json.loads(content))
    assert found.digest == written.digest
    again: dict[str, dict[str, dict[int, int]]] = {}
    for group, topic, queue_id, offset in found.rows():
        again.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
    assert again == table


@pytest.mark.parametrize("table", [7, [], {"a@b": 7}])
def test_offsets_of_another_form_are_refused(table: object) -> None:
    with pytest.raises(ValueError, match="offsetTable"):
        ConsumerOffsets({"offsetTable": table})


def test_groups_are_encoded_as_any_document_whatever_has_changed() -> None:
    """Only the entries that have changed are encoded again."""
    document = parse_fastjson(GROUPS)
    groups = SubscriptionGroups(document)
    for change in (
        lambda: None,
        lambda: groups.put("CG", {"retryMaxTimes": 5}, 1),
        lambda: groups.put('a"b\n\u00e9', {}, 2),
        lambda: groups.delete("CG", 3),
        lambda: groups.put("CG", {}, 4),
        lambda: groups.delete("CG", 5),
        lambda: groups.delete('a"b\n\u00e9', 6),
    ):
        change()
        assert groups.encode() == encode_document(document)


def test_rocketmqs_groups_are_read_changed_and_keep_what_is_unknown() -> None:
    groups = SubscriptionGroups(parse_fastjson(GROUPS))
    assert groups.settings("CG") == {**DEFAULTS, "consumeEnable": False, "retryMaxTimes": 3}
    groups.put("CG", {"retryMaxTimes": 5}, 42)
    groups.put("NEW", {}, 43)
    saved = json.loads(groups.encode())
    entry = saved["subscriptionGroupTable"]["CG"]
    assert (entry["retryMaxTimes"], entry["consumeEnable"], entry["unheardOf"]) == (5, False, [1])
    assert saved["forbiddenTable"] == {"CG": {"orders": 4}}
    assert saved["dataVersion"] == {"counter": 5, "stateVersion": 0, "timestamp": 43}
    new = saved["subscriptionGroupTable"]["NEW"]
    assert new["groupName"] == "NEW" and new["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
    assert groups.settings("CG")["retryMaxTimes"] == 5
    assert groups.delete("CG", 44) and not groups.delete("CG", 45)
    assert groups.settings("CG") == DEFAULTS


def test_what_nobody_here_obeys_of_a_group_is_kept_and_told() -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "multiplier": 2}}
    kept = {"retryMaxTimes": 3, "groupRetryPolicy": policy, "attributes": {"a": "b"}}
    groups = SubscriptionGroups({"subscriptionGroupTable": {"CG": kept}})
    groups.put("CG", {"retryMaxTimes": 4}, 1)
    told = groups.entry("CG")
    assert told == {**DEFAULTS, **kept, "groupName": "CG", "retryMaxTimes": 4}
    assert json.loads(groups.encode())["subscriptionGroupTable"]["CG"]["groupRetryPolicy"] == policy
    groups.put("NEW", {}, 2)
    assert groups.entry("NEW") == groups.entry("UNKNOWN") | {"groupName": "NEW"}
    assert groups.entry("NEW")["groupRetryPolicy"] == {"type": "CUSTOMIZED"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("retryMaxTime", 3, "retryMaxTimes"),
        ("retryMaxTimes", True, "a number"),
        ("consumeEnable", 1, "true or false"),
        ("retryQueueNums", 2**31, "retryQueueNums"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(
    key: str, value: bool | int, said: str
) -> None:
    groups = SubscriptionGroups()
    with pytest.raises(InvalidArgument, match=said):
        groups.put("CG", {"retryMaxTimes": 1, key: value}, 1)
    assert "CG" not in groups.names()


@given(st.data())
def test_a_journal_is_read_up_to_its_first_block_that_is_not_whole(data: st.DataObject) -> None:
    blocks = [[Row("g", "t", number, number, 1, "a")] for number in range(3)]
    raw = encode_journal(Head(("d",), 9), [Gone("g", "b")])
    ends = [len(raw)]
    for block in blocks:
        raw += encode_blocks(block)
        ends.append(len(raw))
    at = data.draw(st.integers(ends[0], len(raw) - 1))
    flipped = bytearray(raw)
    flipped[at] ^= data.draw(st.integers(1, 255))
    entries, good = decode_journal(bytes(flipped))
    whole = sum(end <= at for end in ends) - 1
    assert good == ends[whole]
    assert entries == [Head(("d",), 9), Gone("g", "b"), *(b[0] for b in blocks[:whole])]


@pytest.mark.parametrize("raw", [b"", b"x", MAGIC, MAGIC + bytes(100), MAGIC[:-1] + b"2"])
def test_what_is_no_journal_says_nothing(raw: bytes) -> None:
    assert decode_journal(raw) == ([], 0)


def test_a_journal_without_its_head_says_nothing() -> None:
    assert decode_journal(MAGIC + encode_blocks([Saving("d")])) == ([], 0)


def test_a_journal_of_any_length_is_read_to_its_end() -> None:
    """Of thousands of members, each with the longest filter that is taken."""
    filters = (SubscriptionData("t", "SQL92", "x" * (1 << 20), 1),)
    member = MemberRow("g", "c", filters, 1, "clustering", "last", 0, False)
    rows = [member] * 80
    raw = encode_journal(Head(("d",), 9), rows)
    entries, good = decode_journal(raw)
    assert (len(entries), good) == (81, len(raw)) and entries[1:] == rows
