"""Requests for features that Penstock lacks, answered as by a RocketMQ broker that has them off.

So a tool that asks for them goes on, or prints the same error as it does with RocketMQ. Cold data
are read like any other. Thresholds of groups are kept while this process lives: RocketMQ's broker
forgets them when it stops, too, and obeys them only where the feature is on.
"""

from __future__ import annotations

import mmap

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.bodies import ColdData, CqCheck, RequestModes
from penstock.remoting.admin.words import ReadAheadFields, ResetFlushFields
from penstock.remoting.bodies import write_body
from penstock.remoting.codes import Response
from penstock.remoting.fields import read_fields
from penstock.shared.errors import BrokerBusy, InvalidArgument
from penstock.shared.names import check_group

MOST_THRESHOLDS = 1000
# As many as Java's largest long has.
LONG_DIGITS = 19


# --- cold data ---


def set_thresholds(services: Services, call: Call) -> Reply:
    """Take lines of GROUP=BYTES. A line without a number is passed over, as in RocketMQ, and so is
    one whose group's name is not valid."""
    known = services.cold_thresholds
    for line in bytes(call.command.body).decode("utf-8", "replace").splitlines():
        group, _, text = (part.strip() for part in line.partition("="))
        size = _java_long(text)
        if size is None or not _is_group(group):
            continue
        if group not in known and len(known) >= MOST_THRESHOLDS:
            raise BrokerBusy("as many groups as may have a threshold", MOST_THRESHOLDS)
        known[group] = size
    return Reply()


def _is_group(name: str) -> bool:
    try:
        check_group(name)
    except InvalidArgument:
        return False
    return True


def _java_long(text: str) -> int | None:
    """The number; None for one that RocketMQ's tools, which are told it, cannot read. Thousands of
    digits are not even converted."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= LONG_DIGITS):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


def forget_threshold(services: Services, call: Call) -> Reply:
    services.cold_thresholds.pop(bytes(call.command.body).decode("utf-8", "replace"), None)
    return Reply()


def cold_data(services: Services, call: Call) -> Reply:
    """The thresholds that were set. What is read of cold data is not counted."""
    return Reply(body=write_body(ColdData(services.cold_thresholds)))


def set_read_ahead(services: Services, call: Call) -> Reply:
    """Have the kernel read ahead in the log's segments, or not. Raises InvalidArgument."""
    mode = read_fields(call.command, ReadAheadFields).mode
    if mode not in (mmap.MADV_NORMAL, mmap.MADV_RANDOM):
        raise InvalidArgument("the log is read ahead by 0, and at random by 1", mode)
    services.queues.log.read_ahead(mode == mmap.MADV_NORMAL)
    return Reply(remark=f"the log's segments are read by mode {mode}")


# --- RocksDB ---


def check_rocksdb_queues(services: Services, call: Call) -> Reply:
    """RocketMQ's broker says that it is still checking, whether it has RocksDB or not."""
    return Reply(body=write_body(CqCheck("consume queues are files, and none is in RocksDB")))


def export_rocksdb(services: Services, call: Call) -> Reply:
    """Topics, groups and offsets are JSON already."""
    return Reply(remark="config/ has them as JSON: nothing is in RocksDB")


# --- static topics ---


def static_topic(services: Services, call: Call) -> Reply:
    """Refused as by a broker that does not know static topics: one that took them would have to
    forward requests for queues that are on another broker."""
    remark = "queues are not mapped to other brokers here: make the topic with updateTopic"
    return Reply(code=Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


# --- slaves and controllers ---


def reset_flush_offset(services: Services, call: Call) -> Reply:
    """Only a slave would take it: a master has its own flush offset."""
    read_fields(call.command, ResetFlushFields)
    return Reply()


def request_modes(services: Services, call: Call) -> Reply:
    """All groups pull."""
    return Reply(body=write_body(RequestModes({})))


def for_slaves(services: Services, call: Call) -> Reply:
    remark = "the timers' state is not copied to slaves from here"
    return Reply(code=Response.SYSTEM_ERROR, remark=remark)


def epochs(services: Services, call: Call) -> Reply:
    remark = "only a broker that has a controller has epochs"
    return Reply(code=Response.SYSTEM_ERROR, remark=remark)


# --- users and permissions ---


def authority(services: Services, call: Call) -> Reply:
    remark = "no users and no permissions are kept here: whoever connects may do everything"
    return Reply(code=Response.SYSTEM_ERROR, remark=remark)
