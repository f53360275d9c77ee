"""What operators ask of the broker itself: its state, its configuration, to clean up."""

from __future__ import annotations

import shutil

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.group_counts import Counted
from penstock.actors.gateway.rates import Rate
from penstock.actors.gateway.requests.groups import load_saved
from penstock.actors.gateway.requests.readers import subscription_row
from penstock.actors.gateway.requests.topic_sums import topic_sums
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.bodies import Entries, EntryRow, HaStatus, Stats, StatsItem, Table
from penstock.remoting.admin.config import in_rocketmqs_words
from penstock.remoting.admin.words import EntriesFields, StatsFields
from penstock.remoting.bodies import write_body
from penstock.remoting.codes import VERSION, Response
from penstock.remoting.fields import read_fields
from penstock.shared.errors import InvalidArgument
from penstock.shared.files.disk_space import disk_used_percent
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, store_timestamp_ms
from penstock.shared.layout import StorePaths
from penstock.shared.queue.reader import unreadable

# RocketMQ's name for VERSION.
VERSION_NAME = "V5_3_3"
MOST_ENTRIES = 1000
_SPANS_S = (60, 3600, 86_400)


def runtime_info(services: Services, call: Call) -> Reply:
    """The broker's state, in RocketMQ's words. What Penstock does not have is 0 if a tool reads
    it."""
    positions, wrote = services.positions, services.positions["wrote"]
    table = {
        "brokerActive": "true",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_NAME,
        "bootTimestamp": str(services.started_ms),
        "startAcceptSendRequestTimeStamp": "0",
        "runtime": _duration(services.now_ms() - services.started_ms),
        "commitLogMinOffset": str(positions["log_start"]),
        "commitLogMaxOffset": str(wrote),
        "dispatchMaxBuffer": "0",
        "dispatchBehindBytes": str(max(0, wrote - positions["dispatched"])),
        "remainHowManyDataToCommit": f"{max(0, wrote - positions['committed'])} B",
        "remainHowManyDataToFlush": f"{max(0, wrote - positions['flushed'])} B",
        "remainTransientStoreBufferNumbs": "0",
        "earliestMessageTimeStamp": str(_earliest_ms(services)),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": str(positions["pending_delayed"]),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "pageCacheLockTimeMills": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "0",
    }
    for name in ("send", "pull", "litePull", "query", "ack"):
        for what in ("QueueSize", "QueueCapacity", "QueueHeadWaitTimeMills"):
            table[f"{name}ThreadPool{what}"] = "0"
    table |= _counts(services) | _disk(services) | _delay_offsets(services)
    return Reply(body=write_body(Table(table)))


def _counts(services: Services) -> dict[str, str]:
    """How many messages came and went, and how long it took."""
    rates, positions, times = services.rates, services.positions, services.sends.times
    put, got, wrote = rates.put, rates.got, positions["wrote"]
    size = (wrote - positions["log_start"]) / max(1, put.total) if put.total else 0.0
    return {
        "putTps": put.rates(),
        "getTotalTps": rates.pulls.rates(),
        "getFoundTps": rates.found.rates(),
        "getTransferredTps": got.rates(),
        "getMissTps": rates.missed.rates(),
        "getMessageEntireTimeMax": str(services.pulls.longest_ms),
        "putMessageEntireTimeMax": str(times.longest_ms),
        "putMessageDistributeTime": times.described(),
        "putLatency99": f"{times.within(0.99):.2f}",
        "putLatency999": f"{times.within(0.999):.2f}",
        "putMessageFailedTimes": str(times.failed),
        "putMessageTimesTotal": str(put.in_run),
        "putMessageSizeTotal": str(wrote - positions["run_began"]),
        "putMessageAverageSize": f"{size:.1f}",
        "msgPutTotalYesterdayMorning": str(put.yesterday),
        "msgPutTotalTodayMorning": str(put.today),
        "msgPutTotalTodayNow": str(put.in_run),
        "msgGetTotalYesterdayMorning": str(got.yesterday),
        "msgGetTotalTodayMorning": str(got.today),
        "msgGetTotalTodayNow": str(got.in_run),
    }


def _disk(services: Services) -> dict[str, str]:
    """How full the log's disk is, as RocketMQ says it: what is reserved for root counts as free,
    and still the ratio does not take it for room."""
    log = StorePaths(services.config.store).commit_log
    disk = shutil.disk_usage(log)
    used = f"{max(0, disk_used_percent(log)) / 100}"
    total, free = (f"{each / 2**30:.1f} GiB" for each in (disk.total, disk.total - disk.used))
    return {
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{log}": used,
        "consumeQueueDiskRatio": used,
        "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
    }


def _delay_offsets(services: Services) -> dict[str, str]:
    """How far each delay level was when that was saved last, and its next queue offset."""
    known = load_saved(services, "delay_offsets", dict).get("offsetTable", {})
    return {
        f"scheduleMessageOffset_{queue_id + 1}": (
            f"{known.get(str(queue_id + 1), 0)},{services.queues.range(slot)[1]}"
        )
        for queue_id, slot in services.queues.queues(SCHEDULE_TOPIC).items()
    }


def _duration(ms: int) -> str:
    days, rest = divmod(ms // 1000, 86_400)
    hours, rest = divmod(rest, 3600)
    return f"[ {days} days, {hours} hours, {rest // 60} minutes, {rest % 60} seconds ]"


def _earliest_ms(services: Services) -> int:
    """When the oldest message in the log was stored; -1 if it has none."""
    raw = services.log_at(services.positions["log_start"], SMALLEST_RECORD_BYTES)
    return store_timestamp_ms(raw, 0) if len(raw) == SMALLEST_RECORD_BYTES else -1


def config(services: Services, call: Call) -> Reply:
    port = int(services.address.rpartition(":")[2])
    body = in_rocketmqs_words(services.config, port).encode()
    version = '{"counter":0,"stateVersion":0,"timestamp":0}'
    return Reply({"version": version}, body)


def update_config(services: Services, call: Call) -> Reply:
    raise InvalidArgument(
        "a broker's configuration is fixed while it runs",
        bytes(call.command.body).decode("utf-8", "replace").strip()[:200],
        "stop it and start it with other settings: penstock config show",
    )


def clean(services: Services, call: Call) -> Reply:
    """Have the cleaner look for what has expired, now: segments of the log, queues, index files."""
    services.clean()
    return Reply()


def ha_status(services: Services, call: Call) -> Reply:
    return Reply(body=write_body(HaStatus(services.positions["wrote"])))


def stats(services: Services, call: Call) -> Reply:
    """Sums of the last minute, hour and day: for a topic by its messages' store times, for groups
    and the broker as counted while this process runs."""
    fields = read_fields(call.command, StatsFields)
    name, key = fields.stats_name, fields.stats_key
    if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
        sums = topic_sums(services, key, [*_SPANS_S], of_bytes=name == "TOPIC_PUT_SIZE")
    else:
        topic, _, group = key.partition("@")
        rate = _rate(services, name, services.group_counts.get(topic, group))
        if rate is None:
            remark = f"nothing is counted of {name} {key}"
            return Reply(code=Response.SYSTEM_ERROR, remark=remark)
        sums = [rate.within(span) for span in _SPANS_S]
    items = [StatsItem(sum_, sum_ / span) for sum_, span in zip(sums, _SPANS_S, strict=True)]
    return Reply(body=write_body(Stats(*items)))


def _rate(services: Services, name: str, counted: Counted | None) -> Rate | None:
    if name == "BROKER_PUT_NUMS":
        return services.rates.put
    if name == "BROKER_GET_NUMS":
        return services.rates.got
    if counted is None:
        return None
    if name == "GROUP_GET_NUMS":
        return counted.message_rate
    if name == "GROUP_GET_SIZE":
        return counted.size_rate
    return counted.back_rate if name == "SNDBCK_PUT_NUMS" and counted.back else None


def queue_entries(services: Services, call: Call) -> Reply:
    """Entries of a consume queue as they are in its files."""
    fields = read_fields(call.command, EntriesFields)
    slot = services.queues.queues(fields.topic).get(fields.queue_id)
    if slot is None:
        remark = f"queue {fields.queue_id} of topic {fields.topic} has had no message"
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)
    low, high = services.queues.range(slot)
    start = min(max(low, fields.index), high)
    stop = min(high, start + max(0, min(fields.count, MOST_ENTRIES)))
    try:
        raw = services.queues.entries(slot, start, stop) if start < stop else b""
    except OSError as error:
        raise unreadable(fields.topic, error) from None
    rows = [EntryRow(*row) for row in ENTRY.iter_unpack(raw)]
    wanted = subscription_row(services, fields.consumer_group, fields.topic)
    said = f"{fields.consumer_group}@{fields.topic} is not online!"
    body = Entries(rows, high, low, wanted, said if fields.consumer_group and not wanted else None)
    return Reply(body=write_body(body))
