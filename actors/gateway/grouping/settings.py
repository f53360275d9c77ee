"""Which groups may consume, by config/subscriptionGroup.json: RocketMQ's broker asks at each pull.

The coordinator owns the file and replaces it. It is looked at once a second, and before anybody is
refused: so a group that was made or allowed just now counts at once.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import GroupNotFound, PenstockError, StoreDamaged
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import is_built_in_group
from penstock.shared.names import MAX_GROUP_CHARACTERS
from penstock.shared.progress.subscription_groups import Settings, SubscriptionGroups
from penstock.shared.store.rocketmq_json import load_document

LOOK_MS = 1000


class GroupSettings:
    """The settings at the last look."""

    def __init__(self, config: Config) -> None:
        self._makes_groups = config.auto_create_subscription_group
        self._file = StorePaths(config.store).subscription_groups
        self._groups = SubscriptionGroups()
        self._mark: object = None
        self._look_ms = 0
        # what held pulls depend on; `version` grows with each look that finds it changed
        self._lets_wait: tuple[Set[str], Set[str]] = set(), set()
        self.version = 0

    def work(self, now_ms: int) -> None:
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            self._look()

    def _look(self) -> None:
        # before the file: a change in between is seen at the next look
        mark = _mark(self._file)
        if mark == self._mark:
            return
        try:
            self._groups = load_document(self._file, SubscriptionGroups)
        except (StoreDamaged, OSError):
            return  # what was read before stays; the coordinator reports what is wrong
        self._mark = mark
        names = set() if self._makes_groups else set(self._groups.names())
        lets_wait = self._groups.all_off(), names
        if lets_wait != self._lets_wait:
            self._lets_wait = lets_wait
            self.version += 1

    def of(self, group: str) -> Settings:
        """A group's settings, as they are now. Raises GroupNotFound where there can be none."""
        self._look()
        if not self._is_there(group):
            raise _not_found(group)
        return self._groups.settings(group)

    def notifies(self, group: str) -> bool:
        """Whether its members are notified of changes, by the settings as they are now."""
        self._look()
        return bool(self._groups.settings(group)["notifyConsumerIdsChangedEnable"])

    def check_pull(self, group: str, model: str = "") -> None:
        """Raises GroupNotFound, NoPermission where nobody may pull for this group; `model` is that
        of the member by whose subscription the pull goes."""
        if self._refusal(group, model) is not None:
            self._look()
            if (refused := self._refusal(group, model)) is not None:
                raise refused

    def _refusal(self, group: str, model: str) -> PenstockError | None:
        if not self._is_there(group):
            return _not_found(group)
        return self._groups.switched_off(group, model)

    def _is_there(self, group: str) -> bool:
        if group in self._groups.names():
            return True
        # a held pull keeps the name, and in a frame that may have any size
        is_name = len(group) <= MAX_GROUP_CHARACTERS
        return is_name and (self._makes_groups or is_built_in_group(group))


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound("there is no consumer group of this name", group)


def _mark(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
