"""Makes the wanted rows from the records that were found: filters, and the handling of damage.

    Batch -> candidates() -> [the caller adds the records' bytes] -> rows() -> Arrow columns

It is the same for records that a queue names, that a walk through the log has found, or that a
broker has sent. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.arrow.decode import (
    Batch,
    RecordMismatch,
    entry_columns,
    record_columns,
)
from penstock.shared.errors import PenstockError, UnreadableBody
from penstock.shared.filters.message_filter import SQL92, TAG, Filter, TagFilter, parse_filter
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.spark.reading.options import Mode, Options
from penstock.spark.reading.predicates import Predicate, wanted_texts

CORRUPT = "_corrupt_record"
_IN_ENTRIES = frozenset(entry_columns(Batch("", 0, *(np.empty(0, np.int64),) * 3)))

# The error that says what is wrong with a record of a batch.
Explain = Callable[[Batch, int], PenstockError]
Columns = dict[str, Callable[[], pa.Array]]


class How(NamedTuple):
    """How a query reads records. It goes from the driver to the tasks, so it holds plain values."""

    tags: str = ""
    sql: str = ""
    predicates: tuple[Predicate, ...] = ()
    mode: Mode = Mode.FAILFAST
    fail_on_data_loss: bool = True


def how_of(options: Options, predicates: Sequence[Predicate] = ()) -> How:
    return How(
        options.tags, options.sql, tuple(predicates), options.mode, options.fail_on_data_loss
    )


def _filter_of(how: How) -> Filter | None:
    return parse_filter(SQL92 if how.sql else TAG, how.sql or how.tags)


def needs_records(columns: Collection[str], how: How) -> bool:
    """Whether rows of these columns cannot be made from queue entries alone."""
    # a query that drops or reports damage must get the same rows, whatever columns it asks for
    return (
        how.mode is not Mode.FAILFAST
        or _filter_of(how) is not None
        or not _IN_ENTRIES.issuperset(columns)
        or any(each.column not in _IN_ENTRIES for each in how.predicates)
    )


def is_by_entries(
    options: Options, columns: Collection[str], predicates: Sequence[Predicate] = ()
) -> bool:
    """Whether a query reads only the queue entries of messages."""
    # a broker always sends records, whatever part of them is wanted
    return not options.endpoint and not needs_records(columns, how_of(options, predicates))


class Rows:
    """Makes the rows of one task: arrays in the order of `columns`, a batch at a time."""

    def __init__(self, columns: Sequence[str], how: How) -> None:
        self.columns = columns
        self.how = how
        self._filter = _filter_of(how)
        self._by_code = _by_code(how.predicates)
        self._by_entry = [each for each in how.predicates if each.column in _IN_ENTRIES]
        self._by_record = [each for each in how.predicates if each.column not in _IN_ENTRIES]
        self.needs_records = needs_records(columns, how)

    def candidates(self, named: Batch, codes: npt.NDArray[np.int64] | None = None) -> Batch:
        """The messages that cannot be ruled out without looking at their records.

        `codes` are the tags codes of their queue entries, if there are entries.
        """
        mask = np.ones(len(named.queue_offsets), np.bool_)
        if self._filter is not None and codes is not None:
            mask &= self._filter.may_match(codes)
        if self._by_code is not None and codes is not None:
            # in that topic, an entry has the time at which its message is due instead of a code
            is_time = np.equal(named.topic, SCHEDULE_TOPIC)
            mask &= self._by_code.may_match(codes) | is_time
        return _kept(named, mask & _fulfilled(self._by_entry, entry_columns(named)))

    def of_entries(self, named: Batch) -> list[pa.Array]:
        """The rows of messages, made from their queue entries alone."""
        made = entry_columns(named)
        return [made[name]() for name in self.columns]

    def rows(self, batch: Batch, explain: Explain) -> Iterator[list[pa.Array]]:
        """The rows of records, checked. For a damaged record it raises what `explain` returns,
        skips it, or makes a row for it, as the mode says. Also raises UnreadableBody."""
        try:
            arrays = self._arrays(batch)
        except (RecordMismatch, UnreadableBody) as misfit:
            yield from self._around_damage(batch, explain, misfit)
        else:
            if arrays:
                yield arrays

    def reported(self, known: Mapping[str, pa.Array], reason: str) -> Iterator[list[pa.Array]]:
        """The row of a damaged message: what is known of its place, and what is wrong."""
        for each in self.how.predicates:
            # Spark does not apply pushed filters again, and null fulfils only IS NULL
            if each.column in known:
                fulfilled = each.mask(known[each.column])[0].as_py()
            else:
                fulfilled = each.function == "is_valid" and each.negated
            if not fulfilled:
                return
        row = {**known, CORRUPT: pa.array([reason])}
        yield [row[name] if name in row else pa.nulls(1) for name in self.columns]

    def reported_at(self, alone: Batch, reason: str) -> Iterator[list[pa.Array]]:
        """Like `reported`, for a message that a queue entry names."""
        known = {name: make() for name, make in entry_columns(alone).items()}
        return self.reported(known, reason)

    def reported_by_offset(
        self, topic: str, queue_id: int, offset: int, error: PenstockError
    ) -> Iterator[list[pa.Array]]:
        """Like `reported`, for a message of which only the offset is known; only in PERMISSIVE."""
        if self.how.mode is Mode.PERMISSIVE:
            named = Batch(topic, queue_id, np.array([offset]), *(np.zeros(1, np.int64),) * 2)
            known = {name: make() for name, make in entry_columns(named).items()}
            del known["physical_offset"]
            yield from self.reported(known, str(error))

    def _around_damage(
        self, batch: Batch, explain: Explain, misfit: RecordMismatch | UnreadableBody
    ) -> Iterator[list[pa.Array]]:
        count = len(batch.queue_offsets)
        if self.how.mode is Mode.FAILFAST:
            raise _error(batch, explain, misfit) from misfit
        if count > 1:
            # few records are damaged, so halving costs little, and needs no second set of rules
            first = np.arange(count) < count // 2
            yield from self.rows(_kept(batch, first), explain)
            yield from self.rows(_kept(batch, ~first), explain)
        elif self.how.mode is Mode.PERMISSIVE:
            yield from self.reported_at(batch, str(_error(batch, explain, misfit)))

    def _arrays(self, batch: Batch) -> list[pa.Array]:
        """The rows of records that are all intact; [] if none of them is wanted."""
        made = record_columns(batch)
        if self.how.mode is not Mode.FAILFAST:
            made["body"]()  # compares the checksums
        kept = self._wanted(batch, made)
        if not len(kept.queue_offsets):
            return []
        if kept is not batch:
            made = record_columns(kept)
        unharmed = {CORRUPT: lambda: pa.nulls(len(kept.queue_offsets), pa.string())}
        return [(made | unharmed)[name]() for name in self.columns]

    def _wanted(self, batch: Batch, made: Columns) -> Batch:
        """The intact records that pass the filters."""
        if self._by_record:
            batch = _kept(batch, _fulfilled(self._by_record, made))
        if self._filter is None:
            return batch
        view = memoryview(batch.raw)
        ends = (batch.starts + batch.sizes_bytes).tolist()
        places = zip(batch.starts.tolist(), ends, strict=True)
        found = [self._filter.matches(view[start:end]) for start, end in places]
        return _kept(batch, np.array(found, np.bool_))


def _error(
    batch: Batch, explain: Explain, misfit: RecordMismatch | UnreadableBody
) -> PenstockError:
    return explain(batch, misfit.index) if isinstance(misfit, RecordMismatch) else misfit


def _by_code(predicates: Sequence[Predicate]) -> TagFilter | None:
    """The filter on the tags codes of queue entries that predicates on tags allow."""
    tags = wanted_texts(predicates, "tags")
    # RocketMQ and Penstock both read invalid UTF-8 as this character, but not as many of them
    if tags is None or any("\ufffd" in tag for tag in tags):
        return None
    return TagFilter(tags)


def _fulfilled(predicates: Sequence[Predicate], made: Columns) -> npt.NDArray[np.bool_]:
    count = len(made["queue_offset"]())
    mask: npt.NDArray[np.bool_] = np.ones(count, np.bool_)
    for each in predicates:
        mask &= each.mask(made[each.column]()).to_numpy(zero_copy_only=False)
    return mask


def _kept(batch: Batch, mask: npt.NDArray[np.bool_]) -> Batch:
    return batch if mask.all() else batch.part(mask)
