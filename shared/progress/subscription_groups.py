"""config/subscriptionGroup.json: the groups of a store and their settings, in RocketMQ's form.

    {"dataVersion": {...}, "forbiddenTable": {...},
     "subscriptionGroupTable": {group: {"groupName", "consumeEnable", "retryMaxTimes", ...}}}

Pure functions on the document, and no file. Unknown parts of it are kept as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from copy import deepcopy
from typing import Any

from penstock.shared.errors import InvalidArgument, NoPermission
from penstock.shared.next_steps import did_you_mean
from penstock.shared.store.rocketmq_json import count_change, encode_object, encode_value

Settings = dict[str, bool | int]
# The settings that can be changed, with RocketMQ's defaults.
DEFAULTS: Settings = {
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "brokerId": 0,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
_MOST = 2**31 - 1
# What RocketMQ also writes into the entry of a new group. None of it has an effect. The policy says
# how long a message that failed waits for its next try, but RocketMQ's broker and its remoting
# clients never read it: they obey the delay levels, as we do. Only the proxy reads it, for gRPC
# clients and for the time that popped messages are hidden, and Penstock has no such interface. So
# it is kept, and shown, as it was found.
_UNREAD: dict[str, Any] = {"attributes": {}, "groupRetryPolicy": {"type": "CUSTOMIZED"}}


class SubscriptionGroups:
    """The groups, in memory. The coordinator owns the file; others only load it."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document or {}
        self._document.setdefault("forbiddenTable", {})
        table = self._document.setdefault("subscriptionGroupTable", {})
        if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
            raise ValueError("subscriptionGroupTable is not an object of objects")
        self._table: dict[str, dict[str, Any]] = table
        # results of `settings`, for which members ask at each heartbeat
        self._known: dict[str, Settings] = {}
        # entries as encoded for the file: mostly only one of many has changed
        self._texts: dict[str, str] = {}

    def names(self) -> Set[str]:
        return self._table.keys()

    def settings(self, group: str) -> Settings:
        """All of a group's settings, which the caller must not change; defaults for what is missing
        or of another type."""
        entry = self._table.get(group)
        if entry is None:
            return DEFAULTS
        found = self._known.get(group)
        if found is None:
            found = self._known[group] = {
                key: entry[key] if _fits(entry.get(key), default) else default
                for key, default in DEFAULTS.items()
            }
        return found

    def consume_timeout_ms(self, group: str) -> int:
        """How long a member may work on a message. RocketMQ's broker does not check this, so the
        file may have a time that no member can keep."""
        minutes = self.settings(group)["consumeTimeoutMinute"]
        return 60_000 * (minutes if minutes > 0 else DEFAULTS["consumeTimeoutMinute"])

    def switched_off(self, group: str, model: str) -> NoPermission | None:
        """Why the group's members may not consume in this way now; None if they may."""
        settings, what = self.settings(group), ""
        if not settings["consumeEnable"]:
            what, key = "consuming", "consumeEnable"
        elif model == "broadcasting" and not settings["consumeBroadcastEnable"]:
            what, key = "broadcasting", "consumeBroadcastEnable"
        if not what:
            return None
        fact = f"{what} is switched off for this group"
        return NoPermission(fact, group, f"set its {key} to true")

    def all_off(self) -> Set[str]:
        """Groups that may not consume in any way."""
        return {name for name, each in self._table.items() if each.get("consumeEnable") is False}

    def entry(self, group: str) -> dict[str, Any]:
        """All that its entry says, with defaults for what is missing: what operators are shown."""
        found = self._table.get(group, {})
        return {**_UNREAD, **found, "groupName": group, **self.settings(group)}

    def put(self, group: str, settings: Mapping[str, bool | int], now_ms: int) -> Settings:
        """Make a group or change some of its settings. Returns all of them. `now_ms` is wall time.

        In memory only. Raises InvalidArgument, and then changes nothing.
        """
        for key, value in settings.items():
            _check(key, value)
        entry = self._table.get(group)
        if entry is None:
            entry = self._table[group] = {**DEFAULTS, "groupName": group, **deepcopy(_UNREAD)}
        entry.update(settings)
        self._forget(group)
        count_change(self._document, now_ms)
        return self.settings(group)

    def delete(self, group: str, now_ms: int) -> bool:
        """Remove a group. Returns whether there was one."""
        self._forget(group)
        if self._table.pop(group, None) is None:
            return False
        count_change(self._document, now_ms)
        return True

    def _forget(self, group: str) -> None:
        """Drop what was derived from its entry."""
        self._known.pop(group, None)
        self._texts.pop(group, None)

    def encode(self) -> bytes:
        """The file's content, including what this class does not know in the document."""
        for group in self._table.keys() - self._texts.keys():
            self._texts[group] = encode_value(self._table[group])
        texts = {key: encode_value(v) for key, v in self._document.items() if v is not self._table}
        texts["subscriptionGroupTable"] = encode_object(self._texts)
        return encode_object(texts).encode()


def _fits(value: object, default: bool | int) -> bool:
    # bool is an int in Python, but not in Java
    return type(value) is type(default)


def _check(key: str, value: bool | int) -> None:
    default = DEFAULTS.get(key)
    if default is None:
        raise InvalidArgument("a group has no such setting", key, did_you_mean(key, DEFAULTS))
    if not _fits(value, default):
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise InvalidArgument(f"this setting of a group is {kind}", f"{key}={value}")
    if not -1 <= value <= _MOST:
        raise InvalidArgument(
            "a group's setting cannot have this value", f"{key}={value}", f"choose up to {_MOST}"
        )
