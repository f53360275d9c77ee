"""A member of a group, by rocketmq-client-python 0.5.0rc2: NAME_SERVER TOPIC GROUP.

Prints the body of each message that it gets, and ends with its stdin. It runs in an environment of
its own, without Penstock.
"""

from __future__ import annotations

import os
import sys

from rocketmq import client

name_server, topic, group = sys.argv[1:4]


def taken(message: client.RecvMessage) -> object:
    print(message.body.decode(), flush=True)
    return client.ConsumeStatus.CONSUME_SUCCESS


member = client.PushConsumer(group)
member.set_namesrv_addr(name_server)
member.subscribe(topic, taken)
member.start()
sys.stdin.read()
member.shutdown()
# the library's own threads may abort the process on its way out
os._exit(0)
