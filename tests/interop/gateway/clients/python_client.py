"""RocketMQ's clients for Python: NAME_SERVER TOPIC [short]; prints JSON lines {feature: seen}.

`rocketmq-client-python` 0.5.0rc2 and `rocketmq` 0.4.4 are both called `rocketmq` and have the same
library in C++; each has some calls that the other lacks. What is printed is the same for every
broker: no ids, no times, and no queue that chance chooses; null if the client has no call for a
feature. It runs in an environment of its own, without Penstock.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from rocketmq import client
from rocketmq.ffi import MessageModel

DEADLINE_S = 90
OFFICIAL = hasattr(client, "TransactionMQProducer")
name_server, topic = sys.argv[1:3]
# ends after what every such client can
SHORT = sys.argv[3:] == ["short"]
library = topic  # a prefix of groups' names


def tell(what: str, value: object) -> None:
    print(json.dumps({what: value}).replace(LARGE, "large"), flush=True)


LARGE = "c" * 6000


def made(body: str, tags: str = "A", **properties: str) -> client.Message:
    message = client.Message(topic)
    message.set_body(body)
    message.set_tags(tags)
    message.set_keys(f"key-{body[:8]}")
    for name, value in properties.items():
        message.set_property(name, value)
    return message


def started(kind: Callable, group: str, *arguments: object, **more: object):
    found = kind(f"{library}-{group}", *arguments, **more)
    found.set_namesrv_addr(name_server)
    if not isinstance(found, client.PushConsumer):
        found.start()
    return found


def wait(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


class Received:
    """A push consumer that runs until it is closed; `rows` is what came."""

    def __init__(self, group: str, tags: str = "*", fails: str = "", **more: object) -> None:
        self.rows: list[list[object]] = []
        self.fails = fails
        self.lock = threading.Lock()
        self.consumer = started(client.PushConsumer, group, **more)
        self.consumer.subscribe(topic, self.taken, tags)
        self.consumer.start()

    def taken(self, message: client.RecvMessage) -> object:
        body = message.body.decode()
        row = [body, message.tags.decode(), message.keys.decode(), message.reconsume_times]
        with self.lock:
            self.rows.append(row)
        if not OFFICIAL:
            return None
        if body == self.fails and not message.reconsume_times:
            return client.ConsumeStatus.RECONSUME_LATER
        return client.ConsumeStatus.CONSUME_SUCCESS

    @property
    def bodies(self) -> list[str]:
        with self.lock:
            return [str(row[0]) for row in self.rows]

    def close(self) -> list[list[object]]:
        self.consumer.shutdown()
        return sorted(self.rows)


# sends
producer = started(client.Producer, "producer")
sent = [producer.send_sync(made(f"m{n}", n=str(n), tags="AB"[n % 2])) for n in range(8)]
tell("send", [[int(each.status), len(each.msg_id)] for each in sent])
tell("compressed", int(producer.send_sync(made(LARGE)).status))
producer.send_sync(made("fail"))
producer.send_oneway(made("oneway"))
late = made("late")
late.set_delay_time_level(1)
tell("delay level", int(producer.send_sync(late).status))
wanted = [f"m{n}" for n in range(8)] + [LARGE, "fail", "oneway", "late"]
ordered = [f"o{n}" for n in range(4)]
wanted += ordered
if OFFICIAL:
    in_order = started(client.Producer, "in-order", True)
    results = [in_order.send_orderly_with_sharding_key(made(body), "key") for body in ordered]
    in_order.shutdown()
    tell("selector", None)
    tell("asynchronous", None)
    tell("batch", None)
else:
    results = [producer.send_orderly(made(body), 2) for body in ordered]

    def second(count: int, message: object, argument: object) -> int:
        return ctypes.cast(argument, ctypes.POINTER(ctypes.c_int))[0] - 1

    chosen = [producer.send_orderly(made(f"s{n}"), 2, queue_selector=second) for n in range(3)]
    tell("selector", [each.offset - chosen[0].offset for each in chosen])
    wanted += [f"s{n}" for n in range(3)]
    answers: list[int] = []
    for n in range(3):
        producer.send_async(made(f"a{n}"), lambda result: answers.append(int(result.status)), None)
    wait(lambda: len(answers) == 3)
    tell("asynchronous", answers)
    wanted += [f"a{n}" for n in range(3)]
    batch = producer.send_batch([made(f"b{n}") for n in range(5)])
tell("in order", [each.offset - results[0].offset for each in results])

# who is there all the time
everything = Received("push", fails="fail")


def came(bodies: list[str]) -> bool:
    return wait(lambda: set(bodies) <= set(everything.bodies))


tell("all came", came(wanted))
if OFFICIAL:
    wait(lambda: ["fail", 1] in [[row[0], row[3]] for row in everything.rows])
    tell("redelivery", sorted(row[3] for row in everything.rows if row[0] == "fail"))
if OFFICIAL and not SHORT:
    outcomes = [client.TransactionStatus.COMMIT, client.TransactionStatus.ROLLBACK]
    outcomes.append(client.TransactionStatus.UNKNOWN)
    asked: list[str] = []

    def check(message: client.RecvMessage) -> object:
        asked.append(message.body.decode())
        # a broker may ask before it knows what was said
        return outcomes[1] if asked[-1] == "t1" else client.TransactionStatus.COMMIT

    transactions = started(client.TransactionMQProducer, "transactions", check)
    for n, outcome in enumerate(outcomes):
        half = made(f"t{n}")
        transactions.send_message_in_transaction(half, lambda *_, outcome=outcome: outcome)
    came(["t0", "t2"])
    # a real broker asks again before its mark is written, and commits what it is told twice
    found = sorted({body for body in everything.bodies if body[0] == "t"})
    tell("transaction", [found, "t2" in asked])
    transactions.shutdown()
elif not OFFICIAL:
    # a handler that fails is told by an exception, which its own callback loses
    tell("redelivery", None)
    tell("transaction", None)
    # what the library calls a batch has no mark that a real broker reads: that keeps one message,
    # which begins with a zero, so that the library takes it for an empty one
    items = {f"b{n}" for n in range(5)}
    wait(lambda: items <= set(everything.bodies) or "" in everything.bodies)
    tell("batch", [int(batch.status), sorted(items & set(everything.bodies))])
# with one that fails the library gives back what it has taken before, of the same pull
rows = [row for row in everything.close() if not row[3]]
rows = [row for row in rows if str(row[0])[:1] not in ("t", "f", "b", "")]
tell("one-way", sum(row[0] == "oneway" for row in rows))
tell("push", rows)

# others of the same messages
tagged = Received("tagged", "B")
wait(lambda: len(tagged.bodies) >= 4)
tell("tags", [row[0] for row in tagged.close()])


def end() -> None:
    tell("end", True)
    sys.stdout.flush()
    # the library's own threads may abort the process on its way out, after all work is done
    os._exit(0)


if SHORT:
    producer.shutdown()
    end()
orderly = Received("orderly", orderly=True)
wait(lambda: set(wanted) <= set(orderly.bodies))
tell("push in order", [body for body in orderly.bodies if body in ordered])
orderly.close()
# one that broadcasts has no offsets anywhere yet, and begins with what comes after its start
everyone = Received("everyone", message_model=MessageModel.BROADCASTING)
wait(lambda: bool(producer.send_sync(made("is anybody there")) and everyone.bodies))
to_all = [f"y{n}" for n in range(8)]
for body in to_all:
    producer.send_sync(made(body))
wait(lambda: set(to_all) <= set(everyone.bodies))
tell("broadcasting", sorted(set(everyone.bodies) - {"is anybody there"}))
everyone.close()
if OFFICIAL:
    tell("pull", None)
else:
    puller = started(client.PullConsumer, "pull")
    pulled = {message.body.decode() for message in puller.pull(topic)}
    tell("pull", sorted(pulled & set(wanted)))
    puller.shutdown()
producer.shutdown()
for feature in ("timed", "request-reply", "lite pull, subscribed", "SQL92", "by key"):
    tell(feature, None)
for feature in ("by unique key", "by id", "trace"):
    tell(feature, None)
end()
