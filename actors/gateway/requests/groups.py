"""Groups as operators set them, and their offsets: settings, deletion, resets, copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.bodies import GroupConfigs, Offsets
from penstock.remoting.admin.words import (
    CloneFields,
    DeleteGroupFields,
    GroupName,
    ResetFields,
)
from penstock.remoting.bodies import QueueBody, queue_key, write_body
from penstock.remoting.codes import Response
from penstock.remoting.fields import read_fields
from penstock.shared.errors import (
    GroupNotFound,
    InvalidArgument,
    PenstockError,
    ProtocolError,
    QueueNotFound,
    StoreUnavailable,
)
from penstock.shared.layout import StorePaths
from penstock.shared.progress.subscription_groups import DEFAULTS, SubscriptionGroups
from penstock.shared.queue.reader import unreadable
from penstock.shared.store.rocketmq_json import load_document
from penstock.shared.wire import group_messages as words

# The coordinator takes and saves this many in one turn.
AT_ONCE = 256


def set_group(services: Services, call: Call) -> None:
    """Make a group, or change its settings; it is answered when they are on disk."""
    _set_all(services, call, [_document(call.command.body)])


def set_groups(services: Services, call: Call) -> None:
    """The same for several, which the coordinator saves together."""
    found = _document(call.command.body).get("groupConfigList")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ProtocolError("the request's body has no list of groups", "groupConfigList")
    _set_all(services, call, found)


def _set_all(services: Services, call: Call, wanted: list[dict[str, Any]]) -> None:
    now, later = wanted[:AT_ONCE], wanted[AT_ONCE:]
    left = [len(now)]
    refused: list[PenstockError] = []

    def one_is_set(answer: Any) -> None:
        left[0] -= 1
        if isinstance(answer, PenstockError):
            refused.append(answer)
        if left[0]:
            return
        if refused or not later:
            _done(services, call, refused[0] if refused else answer)
        else:
            _set_all(services, call, later)

    for each in now:
        name = str(each.get("groupName", ""))
        # what is not in DEFAULTS, such as a retry policy, stays as it is
        settings = {key: value for key, value in each.items() if key in DEFAULTS}
        make = partial(words.SetGroup, group=name, settings=settings, run=services.run_id)
        services.groups.ask(make, one_is_set)
    if not wanted:
        _done(services, call, None)


def _document(body: bytes | memoryview) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError("the request's body cannot be read", str(error)[:200]) from None


def delete(services: Services, call: Call) -> None:
    """Delete a group's settings; and its offsets if that is asked for and it has no members, which
    would commit them again."""
    fields = read_fields(call.command, DeleteGroupFields)

    def done(answer: Any) -> None:
        # a group that does not exist is deleted already, as in RocketMQ
        _done(services, call, None if isinstance(answer, GroupNotFound) else answer)

    make = partial(
        words.DeleteGroup,
        group=fields.group_name, run=services.run_id, while_used=True,
        keep_offsets=not fields.clean_offset,
    )  # fmt: skip
    services.groups.ask(make, done)


def describe(services: Services, call: Call) -> Reply:
    """A group's settings. Raises GroupNotFound."""
    group = read_fields(call.command, GroupName).group
    groups = _groups(services)
    if group not in groups.names():
        raise GroupNotFound("there is no consumer group of this name", group)
    return Reply(body=msgspec.json.encode(groups.entry(group)))


def describe_all(services: Services, call: Call) -> Reply:
    """All groups, in one answer."""
    groups = _groups(services)
    table = {group: groups.entry(group) for group in sorted(groups.names())}
    return Reply({"totalGroupNum": str(len(table))}, write_body(GroupConfigs(table)))


def _groups(services: Services) -> SubscriptionGroups:
    """All groups as the coordinator has saved them last, which it does before it answers. Raises
    StoreUnavailable."""
    found: SubscriptionGroups = load_saved(services, "subscription_groups", SubscriptionGroups)
    return found


def load_saved(services: Services, name: str, build: Callable[[dict[str, Any]], Any]) -> Any:
    file = getattr(StorePaths(services.config.store), name)
    try:
        return load_document(file, build)
    except OSError as error:
        raise StoreUnavailable("a file of the store cannot be read", error) from None


def all_offsets(services: Services, call: Call) -> Reply:
    """consumerOffset.json as it was saved last: at most some seconds ago."""
    document = load_saved(services, "consumer_offsets", dict)
    return Reply(body=msgspec.json.encode({"offsetTable": {}, **document}))


def all_delay_offsets(services: Services, call: Call) -> Reply:
    """delayOffset.json as it was saved last."""
    document = load_saved(services, "delay_offsets", dict)
    return Reply(body=msgspec.json.encode({"offsetTable": {}, **document}))


def reset(services: Services, call: Call) -> None:
    """Set a group's offsets in a topic; members go on there with their next pull."""
    fields = read_fields(call.command, ResetFields)
    topic = fields.topic
    offsets = _targets(services, fields)
    low, _ = services.range_of(topic, fields.queue_id)
    if offsets.get(fields.queue_id, low) < low:
        remark = f"queue {fields.queue_id} begins at offset {low}: {fields.offset}"
        services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))
        return

    def done(answer: Any) -> None:
        if isinstance(answer, InvalidArgument | QueueNotFound):
            # an offset that a queue does not have is no invalid parameter to RocketMQ
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=str(answer)))
            return
        if isinstance(answer, PenstockError):
            services.answer(call, refusal(answer))
            return
        services.group_counts.moved(topic, fields.group, offsets)
        name = services.config.broker_name
        table = {queue_key(QueueBody(name, at, topic)): each for at, each in offsets.items()}
        services.answer(call, Reply(body=write_body(Offsets(table))))

    def asked(answer: Any) -> None:
        """RocketMQ also takes one more than a queue's end, with which the client begins at the end.
        So the end itself is set here, and nothing that comes meanwhile is skipped."""
        if isinstance(answer, InvalidArgument) and offsets.get(fields.queue_id):
            offsets[fields.queue_id] -= 1
            services.groups.ask(make, done)
        else:
            done(answer)

    def make(number: int) -> words.ResetOffsets:
        return words.ResetOffsets(number, fields.group, topic, offsets, run=services.run_id)

    services.groups.ask(make, asked)


def _targets(services: Services, fields: ResetFields) -> dict[int, int]:
    """The offset to set in each queue. A queue's end may be late here; the coordinator knows the
    true one. Raises TopicNotFound."""
    topic = fields.topic
    config, queues = services.topics.known(topic), services.queues.queues(topic)
    if fields.queue_id >= 0 and fields.offset is not None and fields.offset != -1:
        return {fields.queue_id: fields.offset}
    ids = range(config.read_queues) if fields.queue_id < 0 else (fields.queue_id,)
    offsets = {}
    try:
        for queue_id in ids:
            slot = queues.get(queue_id)
            if slot is None or fields.timestamp < 0:
                offsets[queue_id] = services.queues.range(slot)[1] if slot is not None else 0
            else:
                offsets[queue_id] = services.queues.offset_at(slot, fields.timestamp)
    except OSError as error:
        raise unreadable(topic, error) from None
    return offsets


def clone(services: Services, call: Call) -> None:
    """Give a group the offsets of another one; the group is made if it does not exist."""
    fields, run = read_fields(call.command, CloneFields), services.run_id
    waiting: list[tuple[str, dict[int, int]]] = []

    def described(answer: Any) -> None:
        if not isinstance(answer, words.GroupInfo):
            _done(services, call, answer)
            return
        found: dict[str, dict[int, int]] = {}
        for each in answer.queues:
            if each.offset >= 0 and fields.topic in ("", each.topic):
                found.setdefault(each.topic, {})[each.queue_id] = each.offset
        waiting.extend(found.items())
        services.groups.ask(lambda n: words.SetGroup(n, fields.dest_group, {}, run), next_one)

    def next_one(answer: Any) -> None:
        if isinstance(answer, PenstockError) or not waiting:
            _done(services, call, answer)
            return
        topic, offsets = waiting.pop(0)
        services.groups.ask(
            lambda number: words.ResetOffsets(number, fields.dest_group, topic, offsets, run=run),
            next_one,
        )

    services.groups.describe(fields.src_group, described)


def _done(services: Services, call: Call, answer: Any) -> None:
    failed = isinstance(answer, PenstockError)
    services.answer(call, refusal(answer) if failed else Reply())
