"""The store as a start finds it: listed once, and again where a step has changed it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record import Record
from penstock.shared.layout import segment_name
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey


def test_what_was_listed_stays_so_until_a_step_says_that_it_has_changed(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, queue_segment_bytes=60)
    config = msgspec.structs.replace(store.config, mapped_file_size_consume_queue_bytes=60)
    with StoreSurvey(store.paths, config) as survey:
        before, other = survey.queues()
        assert (before.max_offset, survey.queue_bases(before)) == (6, [0, 60])
        (before.directory / segment_name(60)).unlink()
        assert survey.queues() == [before, other], "nobody has told it"
        survey.list_again(before)
        now, same = survey.queues()
        assert (now.max_offset, survey.queue_bases(now), same) == (3, [0], other)
        survey.refresh()
        assert not {now, other} & set(survey.queues())


def test_a_file_that_does_not_fit_is_named_where_it_is_asked_for(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, queue_segment_bytes=60)
    with StoreSurvey(store.paths, store.config) as survey:
        assert survey.log_bases() == [0, 4096]
        first = survey.queues()[0]
        for refused in (survey.check_names_and_sizes, lambda: survey.queue_bases(first)):
            with pytest.raises(StoreDamaged, match="cut short.*consumequeue/orders/0/"):
                refused()


@pytest.mark.parametrize("place", ["log", "queue"])
@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        (segment_name(8192), 0, ""),
        (segment_name(12288), 4096, "missing|cut short|has grown|multiple of"),
        (segment_name(8192), 100, "cut short|multiple of"),
        ("stray", 5, "multiple of"),
    ],
)
def test_a_last_file_without_a_byte_is_no_reason_to_refuse_a_start_and_others_are(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    place: str,
    name: str,
    size: int,
    said: str,
) -> None:
    store = stopped_store(twelve)
    where = store.paths.commit_log if place == "log" else store.paths.queue("orders", 1)
    (where / name).touch()
    os.truncate(where / name, size)
    with StoreSurvey(store.paths, store.config) as survey:
        if not said:
            survey.check_names_and_sizes()
            return
        with pytest.raises(StoreDamaged, match=said) as raised:
            survey.check_names_and_sizes()
        assert str(where) in str(raised.value)


def test_an_empty_last_file_is_no_segment_but_none_to_refuse_a_start_for(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    queue = store.paths.queue("orders", 0)
    for directory, base in ((store.paths.commit_log, 8192), (queue, 1000)):
        (directory / segment_name(base)).touch()
    with StoreSurvey(store.paths, store.config) as survey:
        survey.check_names_and_sizes()
        with pytest.raises(StoreDamaged, match=segment_name(8192)):
            survey.log_bases()
        first, second = survey.queues()
        assert survey.queue_bases(second) == [0]
        with pytest.raises(StoreDamaged, match=segment_name(1000)):
            survey.queue_bases(first)


def test_what_has_expired_since_it_was_listed_is_not_on_its_way(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    with StoreDirectory(store.paths.root) as directory:
        assert (directory.log_start, directory.files_end) == (0, 8192)
        assert not directory.expect_log(0, 100), "it is in memory"
        directory.read_log_into(50, memoryview(found := bytearray(100)))
        assert found == directory.read_log(50, 100) != bytes(100)
        (store.paths.commit_log / segment_name(4096)).unlink()
        assert not directory.expect_log(4096, 100)
        with pytest.raises(OffsetOutOfRange, match="expired"):
            directory.read_log(4096, 100)
        for path in store.paths.commit_log.iterdir():
            path.unlink()
        directory.refresh()
        assert (directory.log_start, directory.files_end) == (0, 0)
