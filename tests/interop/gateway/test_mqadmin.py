"""RocketMQ's mqadmin against the gateway: each sub-command does what it says, and prints what it
prints for a real broker."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.takes(60)

WAIT_S = 120
TOPIC, GROUP, QUEUES, MESSAGES = "orders", "billing", 4, 12

# In this order; what begins with @ is known when the broker runs.
COMMANDS = """
updateTopic -b @broker -t made -r 3 -w 2 -p 6 -a +message.type=NORMAL
updateTopicList -b @broker -f @topics
updateTopicPerm -b @broker -t made -p 4
topicRoute -t orders
topicClusterList -t orders
topicStatus -t orders
deleteTopic -c @name -t listed
updateSubGroup -b @broker -g made-group -r 3 -q 2 -d false
updateSubGroupList -b @broker -f @groups
getConsumerConfig -g made-group
deleteSubGroup -b @broker -g listed-group
setConsumeMode -b @broker -t orders -g made-group -m PULL
clusterList
consumerProgress -g billing
consumerConnection -g billing
consumerStatus -g billing -i @client
queryMsgByKey -t orders -k key-3
queryMsgByOffset -t orders -b @name -i 1 -o 0
queryCq -t orders -q 1 -i 0 -c 2 -b @broker
consumeMessage -t orders -b @name -i 1 -o 0 -c 1
brokerConsumeStats -b @broker -l 0
resetOffsetByTime -g idle -t orders -s 0
resetOffsetByTime -g idle -t orders -s 0 -b @broker -q 1 -o 2
skipAccumulatedMessage -g idle -t orders
cloneGroupOffset -s idle -d cloned -t orders
statsAll -t orders
haStatus -b @broker
exportMetadata -c @name -t -f @export
allocateMQ -t orders -i 10.0.0.1,10.0.0.2
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
updateOrderConf -t orders -m put -v interop:4
updateOrderConf -t orders -m get
updateOrderConf -t orders -m delete
cleanExpiredCQ -b @broker
cleanUnusedTopic -b @broker
deleteExpiredCommitLog -b @broker
resetMasterFlushOffset -b @broker -o 0
updateColdDataFlowCtrGroupConfig -b @broker -g billing -v 1000
getColdDataFlowCtrInfo -b @broker
removeColdDataFlowCtrGroupConfig -b @broker -g billing
setCommitLogReadAheadMode -b @broker -m 1
setCommitLogReadAheadMode -b @broker -m 0
checkRocksdbCqWriteProgress -c @name -t orders
rocksDBConfigToJson -c @name
topicList
topicList -c
brokerStatus -b @broker
getBrokerConfig -b @broker
getNamesrvConfig
producerConnection -t orders -g interop-NONE
producer -b @broker
queryMsgById -t orders -i @offset-id
queryMsgByUniqueKey -t orders -i @unique-key
queryMsgTraceById -i @unique-key
printMsg -t orders
printMsgByQueue -t orders -a @name -i 1 -p true
sendMsgStatus -b @name -s 100 -c 2
checkMsgSendRT -t timed -a 3 -s 100
wipeWritePerm -b @name
addWritePerm -b @name
exportConfigs -c @name -f @export
exportMetrics -c @name -f @export
sendMessage -t orders -p last -b @name -i 3
""".strip().splitlines()

# Features that a broker has off; these fail, and after all others.
OFF = """
getBrokerEpoch -b @name
listUser -b @broker
getUser -b @broker -u somebody
createUser -b @broker -u somebody -p secret
updateUser -b @broker -u somebody -p other
deleteUser -b @broker -u somebody
listAcl -b @broker
getAcl -b @broker -s User:somebody
deleteAcl -b @broker -s User:somebody
createAcl -b @broker -s User:somebody -r Topic:* -a PUB -d ALLOW
updateAcl -b @broker -s User:somebody -r Topic:* -a PUB -d ALLOW
copyUser -f @broker -t @broker -u somebody
copyAcl -f @broker -t @broker -s User:somebody
remappingStaticTopic -t orders -b @name
""".strip().splitlines()

# Not compared: these print counts and times of the machine, in an order that chance decides, places
# of messages that were sent together, the broker's own words, topics and settings, or what a
# consumer has committed by then that has ended, and a real broker of 5.3.3 takes a topic for a
# group of its own. Its traces have a topic from the start.
NOT_COMPARED = {
    "clusterList", "consumerStatus", "queryMsgByOffset", "queryCq", "consumeMessage",
    "brokerConsumeStats", "statsAll", "setCommitLogReadAheadMode", "topicList", "brokerStatus",
    "getBrokerConfig", "getNamesrvConfig", "producer", "queryMsgById", "queryMsgByUniqueKey",
    "queryMsgTraceById", "printMsg", "printMsgByQueue", "sendMsgStatus", "checkMsgSendRT",
    "wipeWritePerm", "addWritePerm",
}  # fmt: skip

# Now and then a client of RocketMQ's that has just been made does not get its request off, or says
# that there is no such message when that was so: with a real broker as with the gateway.
NOT_SENT = "RemotingSendRequestException"
FAILS_BY_ITSELF, NO_MESSAGE, ASKED_AGAIN = {"queryMsgByKey", "queryMsgByUniqueKey"}, "CODE: 208", 10

# Refused by both.
REFUSED = {"cloneGroupOffset", "queryMsgTraceById"}

# What some of them print, in their own words.
SAID = {
    "updateTopic": "create topic to ADDRESS success.",
    "topicStatus": "interop 3 0 3 TIME",
    "updateSubGroup": "retryQueueNums=2, retryMaxTimes=3",
    "getConsumerConfig": "retryMaxTimes = 3",
    "clusterList": "interop interop 0 ADDRESS V5_3_3",
    "consumerProgress": "orders interop 3 3 3 0 0 TIME",
    "consumerConnection": "interop-0-billing ADDRESS JAVA V5_3_3",
    "consumerStatus": "#Consumer Properties#",
    "queryMsgByOffset": "Queue ID: 1",
    "queryCq": "max: 3, min: 0",
    "consumeMessage": "Consume ok",
    "brokerConsumeStats": "orders billing interop 3 3 3 0 TIME",
    "resetOffsetByTime": "interop 3 0",
    "resetOffsetByTime -g idle -t orders -s 0 -b @broker -q 1 -o 2": "reset consumer offset to 2",
    "skipAccumulatedMessage": "interop 3 3",
    "statsAll": "orders billing 0",
    "topicList": "orders",
    "topicList -c": "interop orders billing",
    "brokerStatus": "brokerVersionDesc : V5_3_3",
    "getBrokerConfig": "brokerName = interop",
    "getNamesrvConfig": "listenPort = ",
    "producer": "producer group (interop-NONE) instance",
    "queryMsgById": "Keys: [key-3]",
    "queryMsgByUniqueKey": "Keys: [key-3]",
    "printMsg": "BODY: 3",
    "printMsgByQueue": "queueId=1",
    "sendMsgStatus": "sendStatus=SEND_OK",
    "checkMsgSendRT": "interop 1 true",
    "wipeWritePerm": "OK,",
    "addWritePerm": "OK,",
    "haStatus": "#SlaveNum 0",
    "exportMetadata": "topic.json success",
    "sendMessage": "interop 3 SEND_OK",
}


def test_mqadmins_commands_do_what_they_say_and_print_what_they_do_for_a_real_broker(
    both: tuple[Any, Any], java: Callable[..., Any]
) -> None:
    with ThreadPoolExecutor(2) as at_once:  # most of what they do is to wait
        ours, theirs = at_once.map(lambda place: said_of(place, java(place), java(place)), both)
    for command, text in ours.items():
        name = command.split()[0]
        if command not in OFF and name not in REFUSED:
            assert "SubCommandException" not in text, f"{command}:\n{text}"
            assert SAID.get(command, SAID.get(name, "")) in text, f"{command}:\n{text}"
    different = {
        command: (ours[command], theirs[command])
        for command in ours
        if ours[command] != theirs[command] and command.split()[0] not in NOT_COMPARED
    }
    assert not different, json.dumps(different, indent=1)


def said_of(place: Any, client: Any, admin: Any) -> dict[str, str]:
    """What each command prints while a member of GROUP is there, and another group has been."""
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    orders, receipts = place.file("send.jsonl"), place.file("sent.jsonl")
    sent: list[dict[str, Any]] = []
    rows = [
        {
            "topic": TOPIC,
            "queue": number % QUEUES,
            "body": b64encode(b"%d" % number).decode(),
            "keys": [f"key-{number}"],
            "tags": "A",
        }
        for number in range(MESSAGES)
    ]
    # one to each queue at a time, so that each has its offset by its number, whoever stores them
    for first in range(0, MESSAGES, QUEUES):
        turn = rows[first : first + QUEUES]
        orders.write_text("".join(json.dumps(row) + "\n" for row in turn))
        client.ask("send", messages=orders, receipts=receipts)
        sent += map(json.loads, receipts.read_text().splitlines())
    third = next(row for row in sent if row["line"] == 3)
    out, topics, groups = (place.file(f"{name}.json") for name in ("consumed", "topics", "groups"))
    listed = {"topicName": "listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    topics.write_text(json.dumps([listed]))
    groups.write_text(json.dumps([{"groupName": "listed-group"}]))
    usual = {"topics": {TOPIC: "*"}, "level": 1, "out": out}
    client.ask("consume", group="idle", until=MESSAGES, idle_ms=30_000, **usual)
    # it ends with the last message that a command sends
    client.begin("consume", group=GROUP, until=MESSAGES + 1, idle_ms=240_000, **usual)
    where = {
        "@client": await_member(place, admin),
        "@broker": f"127.0.0.1:{place.port}",
        "@name": "interop",
        "@export": str(place.directory / "export"),
        "@topics": str(topics),
        "@groups": str(groups),
        "@offset-id": third["message_id"],
        "@unique-key": third["unique_key"],
    }
    said = {}
    for command in (*COMMANDS, *OFF):
        said[command] = mqadmin(place, admin, *(where.get(word, word) for word in command.split()))
    client.finish()
    client.ask("close")
    admin.end()
    return said


def mqadmin(place: Any, admin: Any, *words: str) -> str:
    """What it prints, without times, addresses and places; of an error the code."""
    failures = (NOT_SENT, NO_MESSAGE) if words[0] in FAILS_BY_ITSELF else (NOT_SENT,)
    for _ in range(ASKED_AGAIN):
        text = str(admin.ask("mqadmin", words=[*words, "-n", place.name_server]))
        if not any(each in text for each in failures):
            break
    text = text.replace(str(place.directory), "PLACE")
    for pattern, name in _PATTERNS:
        text = re.sub(pattern, name, text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not _TRACE.match(line))


def await_member(place: Any, admin: Any) -> str:
    """The id of the group's member, once it is there and has committed each of its queues."""
    until = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < until
        words = ["consumerConnection", "-g", GROUP, "-n", place.name_server]
        found = re.search(r"^\S+@\S+", admin.ask("mqadmin", words=words), re.M)
        each = MESSAGES // QUEUES
        progress = mqadmin(place, admin, "consumerProgress", "-g", GROUP)
        # each queue's row: before the first commit there may be none, and their sum is 0, too
        is_whole = progress.count(f" {each} {each} 0 0 ") == QUEUES
        # of the retry topic a client commits when its first pull is over, which found nothing
        if found and is_whole and f"%RETRY%{GROUP} " in progress:
            return found[0]
        time.sleep(0.5)


_PATTERNS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,:]?\d*", "TIME"),
    (r"\b[0-9A-F]{32}(?:[0-9A-F]{24})?\b", "ID"),
    (r"(CODE: \d+)\s+DESC: .*", r"\1"),
    # RocketMQ's counts what clients have pulled lately; there is none of groups here
    (r"(Consume TPS): \S+", r"\1"),
    (r"(?:\d{1,3}\.){3}\d{1,3}(?:@[0-9#]+)?(?::\d+)?", "ADDRESS"),
)
_TRACE = re.compile(r"at \S+\(|\.\.\. \d+ more|For more information")
