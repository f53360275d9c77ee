"""config/subscriptionGroup.json: the groups of a store and their settings, in RocketMQ's form.

    {"dataVersion": {...}, "forbiddenTable": {...},
     "subscriptionGroupTable": {group: {"groupName", "consumeEnable", "retryMaxTimes", ...}}}

Pure functions on the document, and no file. What we do not know in it is kept as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from copy import deepcopy
from typing import Any

from penstock.shared.errors import InvalidArgument, NoPermission
from penstock.shared.next_steps import did_you_mean
from penstock.shared.store.rocketmq_json import count_change, encode_object, encode_value

Settings = dict[str, bool | int]
# Those that can be set, with RocketMQ's defaults.
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
# What a group's entry has besides, as RocketMQ writes it for a new one. None of it is obeyed. The
# policy says how long a message that failed waits for its next try, but RocketMQ's broker and its
# remoting clients never ask: they go by the delay levels, as we do. Its reader is the proxy, which
# tells it to gRPC clients and hides popped messages by it, and there is no such way in here. So it
# is kept as it was found, and told as it was kept.
_UNREAD: dict[str, Any] = {"attributes": {}, "groupRetryPolicy": {"type": "CUSTOMIZED"}}


class SubscriptionGroups:
    """The groups, in memory. The coordinator owns the file; others load it to look."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document or {}
        self._document.setdefault("forbiddenTable", {})
        table = self._document.setdefault("subscriptionGroupTable", {})
        if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
            raise ValueError("subscriptionGroupTable is not an object of objects")
        self._table: dict[str, dict[str, Any]] = table
        # what `settings` has found: members ask for it at each heartbeat
        self._known: dict[str, Settings] = {}
        # the entries as the file has them: mostly one of many has changed
        self._texts: dict[str, str] = {}

    def names(self) -> Set[str]:
        return self._table.keys()

    def settings(self, group: str) -> Settings:
        """All of a group's settings, not to be changed; the defaults where it has none, or
        something else."""
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
        """How long its members may have a message in hand. RocketMQ's broker asks nobody for it, so
        the file may say a time that no member can keep."""
        minutes = self.settings(group)["consumeTimeoutMinute"]
        return 60_000 * (minutes if minutes > 0 else DEFAULTS["consumeTimeoutMinute"])

    def switched_off(self, group: str, model: str) -> NoPermission | None:
        """Why the group's members may not consume in this way now; None where they may."""
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
        """All that its entry says, with the defaults of what it lacks: what operators are told."""
        found = self._table.get(group, {})
        return {**_UNREAD, **found, "groupName": group, **self.settings(group)}

    def put(self, group: str, settings: Mapping[str, bool | int], now_ms: int) -> Settings:
        """Make a group or change some of its settings; all of them. `now_ms` is wall time.

        In memory only. Raises InvalidArgument, and then nothing has changed.
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
        """Forget a group; whether there was one."""
        self._forget(group)
        if self._table.pop(group, None) is None:
            return False
        count_change(self._document, now_ms)
        return True

    def _forget(self, group: str) -> None:
        """What was found out of its entry."""
        self._known.pop(group, None)
        self._texts.pop(group, None)

    def encode(self) -> bytes:
        """The file's content, with all that the document had and this class does not know."""
        for group in self._table.keys() - self._texts.keys():
            self._texts[group] = encode_value(self._table[group])
        texts = {key: encode_value(v) for key, v in self._document.items() if v is not self._table}
        texts["subscriptionGroupTable"] = encode_object(self._texts)
        return encode_object(texts).encode()


def _fits(value: object, default: bool | int) -> bool:
    # bool is an int to Python, and not to Java
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
