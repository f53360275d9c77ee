"""RocketMQ's mqadmin against the gateway: each sub-command does what it says, without errors."""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

WAIT_S = 60
TOPIC, GROUP, QUEUES, MESSAGES = "orders", "billing", 4, 12

# In this order; what begins with @ is known when the broker runs.
COMMANDS = """
updateTopic -b @broker -t made -r 3 -w 2 -p 6 -a +message.type=NORMAL
topicStatus -t orders
updateSubGroup -b @broker -g made-group -r 3 -q 2 -d false
getConsumerConfig -g made-group
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
skipAccumulatedMessage -g idle -t orders
statsAll -t orders
haStatus -b @broker
exportMetadata -c @name -t -f @export
sendMessage -t orders -p last -b @name -i 3
""".strip().splitlines()

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
    "skipAccumulatedMessage": "interop 3 3",
    "statsAll": "orders billing 0",
    "haStatus": "#SlaveNum 0",
    "exportMetadata": "topic.json success",
    "sendMessage": "interop 3 SEND_OK",
}


def test_mqadmins_commands_do_what_they_say(
    place: Any, penstock: Callable[..., Any], client: Any
) -> None:
    penstock(
        place,
        produce_port=0,
        gateway_enable=True,
        gateway_port=place.port,
        gateway_name_server_port=place.name_server_port,
        broker_name="interop",
        cluster_name="interop",
    )
    admin = type(client)(place.file("admin.txt"))
    try:
        said = said_of(place, client, admin)
    finally:
        admin.end()
    for command, text in said.items():
        assert "SubCommandException" not in text, f"{command}:\n{text}"
        assert SAID.get(command.split()[0], "") in text, f"{command}:\n{text}"


def said_of(place: Any, client: Any, admin: Any) -> dict[str, str]:
    """What each command prints while a member of GROUP is there, and another group has been."""
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    orders, receipts = place.file("send.jsonl"), place.file("sent.jsonl")
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
    orders.write_text("".join(json.dumps(row) + "\n" for row in rows))
    client.ask("send", messages=orders, receipts=receipts)
    out = place.file("consumed.jsonl")
    usual = {"topics": {TOPIC: "*"}, "level": 1, "out": out}
    client.ask("consume", group="idle", until=MESSAGES, idle_ms=30_000, **usual)
    # it ends with the last command's message
    client.begin("consume", group=GROUP, until=MESSAGES + 1, idle_ms=120_000, **usual)
    where = {
        "@client": await_member(place, admin),
        "@broker": f"127.0.0.1:{place.port}",
        "@name": "interop",
        "@export": str(place.directory / "export"),
    }
    said = {}
    for command in COMMANDS:
        said[command] = mqadmin(place, admin, *(where.get(word, word) for word in command.split()))
    client.finish()
    client.ask("close")
    return said


def mqadmin(place: Any, admin: Any, *words: str) -> str:
    """What it prints, without times and addresses."""
    text = str(admin.ask("mqadmin", words=[*words, "-n", place.name_server]))
    for pattern, name in _PATTERNS:
        text = re.sub(pattern, name, text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def await_member(place: Any, admin: Any) -> str:
    """The id of the group's member, once it is there and has committed all that there is."""
    until = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < until
        words = ["consumerConnection", "-g", GROUP, "-n", place.name_server]
        found = re.search(r"^\S+@\S+", admin.ask("mqadmin", words=words), re.M)
        each = MESSAGES // QUEUES
        progress = mqadmin(place, admin, "consumerProgress", "-g", GROUP)
        # each queue's row: before the first commit there may be none, and their sum is 0, too
        if found and progress.count(f" {each} {each} 0 0 ") == QUEUES:
            return found[0]
        time.sleep(0.5)


_PATTERNS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,:]?\d*", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"(?:\d{1,3}\.){3}\d{1,3}(?:@[0-9#]+)?(?::\d+)?", "ADDRESS"),
)
