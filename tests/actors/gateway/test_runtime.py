"""A broker's state, as RocketMQ's tools read it.

The Prometheus exporter wants nearly all keys that a real broker has: where one is missing it
drops all of its metrics of the broker.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from penstock.actors.gateway.put_times import SPAN_MS, PutTimes
from penstock.actors.gateway.rates import SAMPLE_MS
from penstock.remoting.codes import Request, Response

WAIT_S = 60
# what a RocketMQ 5.3.3 broker has, but for the place of its log
KEYS = [
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity",
    "ackThreadPoolQueueCapacity", "ackThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueSize",
    "bootTimestamp", "brokerActive", "brokerVersion", "brokerVersionDesc", "commitLogDirCapacity",
    "commitLogDiskRatio", "commitLogMaxOffset", "commitLogMinOffset", "consumeQueueDiskRatio",
    "dispatchBehindBytes", "dispatchMaxBuffer", "earliestMessageTimeStamp", "getFoundTps",
    "getMessageEntireTimeMax", "getMissTps", "getTotalTps", "getTransferredTps",
    "litePullThreadPoolQueueCapacity", "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize", "msgGetTotalTodayMorning", "msgGetTotalTodayNow",
    "msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills", "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize", "putLatency99",
    "putLatency999", "putMessageAverageSize", "putMessageDistributeTime", "putMessageEntireTimeMax",
    "putMessageFailedTimes", "putMessageSizeTotal", "putMessageTimesTotal", "putTps",
    "queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize", "remainHowManyDataToFlush", "remainTransientStoreBufferNumbs",
    "runtime", "sendThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize", "startAcceptSendRequestTimeStamp", "timerCongestNum",
    "timerDequeueTps", "timerEnqueueTps", "timerOffsetBehind", "timerReadBehind",
]  # fmt: skip


def told(asker: Any) -> dict[str, str]:
    table: dict[str, str] = json.loads(asker.ask(Request.GET_BROKER_RUNTIME_INFO).body)["table"]
    return table


def test_it_has_all_that_a_real_broker_has(gateway: Any, peer: Any) -> None:
    table = told(peer())
    assert {*KEYS} <= table.keys()
    assert table[f"commitLogDiskRatio_{gateway.store}/commitlog"] == table["commitLogDiskRatio"]
    for name in ("getMessageEntireTimeMax", "putMessageEntireTimeMax", "putMessageFailedTimes"):
        assert int(table[name]) >= 0
    assert float(table["putLatency99"]) <= float(table["putLatency999"])


def test_the_disk_is_as_full_as_it_is_for_messages(gateway: Any, peer: Any) -> None:
    """By the other ratio a disk with blocks that are reserved for root is never full."""
    asker, until = peer(), time.monotonic() + WAIT_S
    while True:
        table = told(asker)
        disk = os.statvfs(gateway.store)
        used = disk.f_blocks - disk.f_bfree
        percent = math.ceil(100 * used / (used + disk.f_bavail))
        free = f"{disk.f_bfree * disk.f_frsize / 2**30:.1f} GiB."
        # others write on this disk, too
        if float(table["commitLogDiskRatio"]) == float(f"{percent / 100}") and table[
            "commitLogDirCapacity"
        ].endswith(f"Free : {free}"):
            break
        assert time.monotonic() < until, (table["commitLogDiskRatio"], percent, free)
    assert table["consumeQueueDiskRatio"] == table["commitLogDiskRatio"]


def test_pulls_that_find_and_that_do_not_are_counted_apart(peer: Any) -> None:
    asker = peer()
    send = {
        "producerGroup": "PG", "topic": "found", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        "reconsumeTimes": 0,
    }  # fmt: skip
    assert asker.ask(Request.SEND_MESSAGE, send, b"x").code == Response.SUCCESS
    pull = {
        "consumerGroup": "g", "topic": "found", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0,
    }  # fmt: skip
    until = time.monotonic() + WAIT_S
    while asker.ask(Request.PULL_MESSAGE, pull).code != Response.SUCCESS:
        assert time.monotonic() < until, "it is in its queue a moment later"
    nothing = pull | {"queueOffset": 1}
    assert asker.ask(Request.PULL_MESSAGE, nothing).code == Response.PULL_NOT_FOUND
    while True:  # they are counted every SAMPLE_MS
        table = told(asker)
        rates = [float(table[f"get{name}Tps"].split()[1]) for name in ("Found", "Miss", "Total")]
        if all(rates):
            break
        assert time.monotonic() < until + SAMPLE_MS / 1000, table
        time.sleep(0.05)
    assert int(table["msgGetTotalTodayNow"]) >= 1


def test_how_long_sends_took_is_told_of_the_last_whole_minute() -> None:
    times = PutTimes()
    times.work(1000)
    assert (times.described(), times.within(0.99)) == ("null", 0)
    for ms, count in ((0, 90), (1, 5), (10, 3), (11, 1), (70_000, 1)):
        times.took(ms, count)
    times.work(1000 + SPAN_MS - 1)
    assert times.described() == "null"
    times.work(1000 + SPAN_MS)
    found = dict(each[1:].split("]:") for each in times.described().split(" "))
    assert len(found) == 13 and sum(map(int, found.values())) == 100
    assert {name: count for name, count in found.items() if count != "0"} == {
        "<=0ms": "90", "0~10ms": "8", "10~50ms": "1", "10s~": "1",
    }  # fmt: skip
    assert [times.within(share) for share in (0.5, 0.95, 0.99, 0.999)] == [0, 1, 11, 10_001]
    assert times.longest_ms == 70_000
    times.work(1000 + 2 * SPAN_MS)
    assert times.within(0.999) == 0 and times.longest_ms == 70_000
