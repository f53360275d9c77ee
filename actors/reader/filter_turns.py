"""The filters of pulls, and whose long filter is parsed next.

Parsing 8 KiB of SQL92 takes some 30 ms. So a filter is parsed once, and a pull with a long one that
is not known waits. The reader parses one of those between two polls of its socket, and consumers
with a known filter, or none, do not notice.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.shared.errors import FilterError
from penstock.shared.filters.message_filter import SQL92, Filter, KnownFilters
from penstock.shared.names import check_group
from penstock.shared.store.consumer_filters import ConsumerFilterFile
from penstock.shared.wire.messages import Pull


class FilterTurns:
    """The filters of one reader, and the pulls that wait for theirs: one for each consumer."""

    def __init__(self, file: ConsumerFilterFile, sql92: bool) -> None:
        """`file` notes the filters of groups; `sql92` says whether SQL92 filters are allowed."""
        self._file = file
        self._sql92 = sql92
        self._known = KnownFilters()
        self._waiting: OrderedDict[bytes, Pull] = OrderedDict()

    def has_to_wait(self, peer: bytes, pull: Pull) -> bool:
        """Whether the pull's filter takes long to parse; then `next` returns it later."""
        wanted = pull.subscription
        self._waiting.pop(peer, None)
        if wanted is None or not self._known.costs(wanted.expression_type, wanted.expression):
            return False
        self._waiting[peer] = pull
        return True

    def next(self) -> tuple[bytes, Pull] | None:
        """The next pull whose filter is to be parsed."""
        return self._waiting.popitem(last=False) if self._waiting else None

    def clear(self) -> None:
        """All connections have closed."""
        self._waiting.clear()

    def filter_of(self, pull: Pull) -> Filter | None:
        """The pull's filter; None for all messages. Raises FilterError."""
        wanted = pull.subscription
        if wanted is None:
            return None
        if wanted.expression_type == SQL92 and not self._sql92:
            raise FilterError(
                "this broker does not filter by SQL92",
                "enable_property_filter is false",
                "subscribe by tags, or start the broker with: penstock up --set "
                "enable_property_filter=true",
            )
        chosen = self._known.get(wanted.expression_type, wanted.expression)
        if wanted.expression_type == SQL92 and wanted.group:
            group = check_group(wanted.group)
            self._file.register(pull.topic, group, wanted.expression, wanted.version)
        return chosen
