"""Requests for features that Penstock lacks: answered as by a broker that has them off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.remoting.codes import AUTHORITY, Request, Response
from penstock.shared.names import MAX_GROUP_CHARACTERS

GROUPS = 1000


@pytest.fixture
def asker(peer: Any) -> Any:
    return peer()


@pytest.fixture
def no_thresholds(asker: Any) -> Iterator[None]:
    yield
    for group in cold_data(asker)["configTable"]:
        asker.ask(Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=group.encode())


def cold_data(asker: Any) -> dict[str, Any]:
    answer = asker.ask(Request.GET_COLD_DATA_FLOW_CTR_INFO)
    assert answer.code == Response.SUCCESS
    found: dict[str, Any] = json.loads(answer.body)
    return found


@pytest.mark.usefixtures("no_thresholds")
def test_a_threshold_of_a_group_is_told_until_it_is_removed(asker: Any) -> None:
    lines = b"billing=1000\n=1\nno-number=many\nnothing\n other = 5 \n"
    answer = asker.ask(Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=lines)
    assert answer.code == Response.SUCCESS
    found = cold_data(asker)
    assert found.pop("configTable") == {"billing": 1000, "other": 5}
    assert found == {
        "runtimeTable": {},
        "cgColdReadThreshold": 3 << 20,
        "globalColdReadThreshold": 100 << 20,
        "globalAcc": 0,
    }
    for _ in range(2):  # the second time there is none
        answer = asker.ask(Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"billing")
        assert answer.code == Response.SUCCESS
    assert cold_data(asker)["configTable"] == {"other": 5}


@pytest.mark.usefixtures("no_thresholds")
def test_thresholds_are_not_kept_without_end(asker: Any) -> None:
    lines = "".join(f"g{number}=1\n" for number in range(GROUPS + 1)).encode()
    answer = asker.ask(Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=lines)
    assert answer.code == Response.SYSTEM_BUSY
    assert len(cold_data(asker)["configTable"]) == GROUPS
    answer = asker.ask(Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g0=2")
    assert answer.code == Response.SUCCESS, "one that is known is changed"


@pytest.mark.usefixtures("no_thresholds")
def test_a_threshold_that_is_no_long_of_javas_or_of_no_group_is_passed_over(asker: Any) -> None:
    most = (1 << 63) - 1
    kept = {"g" * MAX_GROUP_CHARACTERS: 1, "most": most, "least": -most - 1}
    lines = [
        "g" * (MAX_GROUP_CHARACTERS + 1) + "=1", "g" * (1 << 20) + "=1", "a b=1",
        "many=" + "9" * 5000,
        f"over={most + 1}", f"under={-most - 2}", "more=" + "1" * 25, "minus=-", "twice=--1",
        *(f"{group}={size}" for group, size in kept.items()),
    ]  # fmt: skip
    body = "\n".join(lines).encode()
    answer = asker.ask(Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)
    assert answer.code == Response.SUCCESS
    assert cold_data(asker)["configTable"] == kept


@pytest.mark.parametrize(("mode", "code"), [(1, 0), (0, 0), (7, 29), ("", 1)])
def test_the_log_is_read_ahead_or_not(asker: Any, mode: object, code: int) -> None:
    answer = asker.ask(Request.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode})
    assert answer.code == code and answer.remark


def test_what_rocksdb_would_do_is_done(asker: Any) -> None:
    fields = {"topic": "t", "checkStoreTime": 0}
    answer = asker.ask(Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, fields)
    assert answer.code == Response.SUCCESS and json.loads(answer.body)["checkStatus"] == 2
    answer = asker.ask(Request.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics;"})
    assert answer.code == Response.SUCCESS


def test_a_broker_without_slaves_and_controller_answers_as_one(asker: Any) -> None:
    answer = asker.ask(Request.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 0})
    assert answer.code == Response.SUCCESS
    assert asker.ask(Request.RESET_MASTER_FLUSH_OFFSET).code == Response.SYSTEM_ERROR
    answer = asker.ask(Request.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(answer.body) == {"messageRequestModeMap": {}}
    for code in (
        Request.GET_TIMER_CHECK_POINT, Request.GET_TIMER_METRICS, Request.GET_BROKER_EPOCH_CACHE,
    ):  # fmt: skip
        answer = asker.ask(code)
        assert answer.code == Response.SYSTEM_ERROR and answer.remark


def test_users_and_permissions_are_refused_as_where_nobody_keeps_them(asker: Any) -> None:
    assert [*map(int, AUTHORITY)] == list(range(3001, 3011))
    for code in AUTHORITY:
        fields = {"username": "u", "subject": "User:u"}
        answer = asker.ask(code, fields, b'{"policies":[{}]}')
        assert answer.code == Response.SYSTEM_ERROR and "users" in answer.remark


def test_a_static_topic_is_refused_and_what_to_do_instead_said(asker: Any) -> None:
    """As mqadmin's updateStaticTopic and remappingStaticTopic ask for one."""
    fields = {"topic": "static", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    answer = asker.ask(Request.UPDATE_AND_CREATE_STATIC_TOPIC, fields, b'{"bname":"b"}')
    assert answer.code == Response.REQUEST_CODE_NOT_SUPPORTED and "updateTopic" in answer.remark
