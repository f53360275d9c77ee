"""Which position bounds a stream, by what a store's files and a running broker say."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from penstock.bench.loads.stack import running_stack
from penstock.client.sending.producer import Producer
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Endpoints, Run, boot_id, read_run
from penstock.shared.process.broker_status import read_status
from penstock.shared.store.watermark import Watermark, make_watermark
from penstock.spark.reading.durable import durable_end
from penstock.spark.reading.options import parse_options
from penstock.spark.reading.stream import Offset, StoreStreamReader
from penstock.spark.source import PenstockSource
from tests.spark.conftest import StoreBuilder

SMALL_FILES = (
    "mapped_file_size_commit_log_bytes = 16_777_216",
    "mapped_file_size_consume_queue_bytes = 20_000",
)


def left_by(paths: StorePaths, flushed: int, *, boot: str, died: bool) -> None:
    """What a run whose memory is gone has left."""
    run = Run(
        "0" * 16, boot, "/dev/shm/penstock-" + "0" * 16, os.getpid(), 1, Endpoints(*"    "), True
    )
    paths.own.mkdir()
    paths.run.write_bytes(msgspec.json.encode(run))
    make_watermark(paths.watermark, Watermark(run.run_id, False, flushed))
    if died:
        paths.abort.write_bytes(str(run.supervisor_pid).encode())


def offsets(store: StoreBuilder) -> dict[str, dict[str, int]]:
    options = {"path": store.root}
    reader = StoreStreamReader(parse_options(options), PenstockSource(options).schema())
    found: dict[str, dict[str, int]] = reader.latestOffset(
        reader.initialOffset(), reader.getDefaultReadLimit()
    )["offsets"]
    return found


@pytest.fixture
def filled(store: StoreBuilder) -> StoreBuilder:
    for number in range(10):
        store.put(queue_id=number % 2)
    return store


def test_after_a_power_failure_the_watermark_bounds_a_stream(filled: StoreBuilder) -> None:
    """What comes after it a start may cut, and give its offsets to other messages."""
    seventh = filled.position * 7 // 10
    left_by(filled.paths, seventh, boot="another", died=True)
    assert durable_end(filled.paths).end == seventh
    assert offsets(filled) == {"flights": {"0": 4, "1": 3}}


def test_a_store_that_was_stopped_in_order_is_all_on_disk(filled: StoreBuilder) -> None:
    left_by(filled.paths, 5, boot=boot_id(), died=False)
    assert durable_end(filled.paths) == (None, "", 0, True)
    assert offsets(filled) == {"flights": {"0": 5, "1": 5}}


def test_a_rocketmq_that_took_the_store_over_is_not_bound_by_an_old_watermark(
    filled: StoreBuilder,
) -> None:
    left_by(filled.paths, 5, boot=boot_id(), died=False)
    filled.paths.abort.write_bytes(b"4711")
    assert durable_end(filled.paths) == (None, "", 0, False)


def test_of_a_running_broker_a_stream_gets_what_is_flushed_and_nothing_more(tmp_path: Path) -> None:
    with running_stack(tmp_path / "store", SMALL_FILES) as stack:
        with Producer(store=stack.store) as producer:
            for number in range(20):
                producer.send("orders", b"%d" % number).result(60)
        options = {"path": str(stack.store), "columns": "body"}
        reader = StoreStreamReader(parse_options(options), PenstockSource(options).schema())
        start = reader.initialOffset()
        paths = StorePaths(stack.store)
        run = read_run(paths)
        assert run is not None
        page = Positions(run.positions)
        flushed = page["flushed"]
        page.close()
        # acknowledged is flushed, and the queues follow within a tick
        while durable_end(paths).end != flushed:
            pass
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert sorted(map(int, _bodies(reader, start, end))) == list(range(20))
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


@pytest.mark.parametrize("chosen", [{}, {"subscribe": "orders"}])
def test_a_stream_waits_for_the_first_queues_of_a_running_broker(
    tmp_path: Path, chosen: dict[str, str]
) -> None:
    """Messages are acknowledged before queues have them: nothing is to be made again."""
    with running_stack(tmp_path / "store", SMALL_FILES) as stack:
        (reput,) = (
            each["pid"] for each in read_status(stack.store)["actors"] if each["name"] == "reput"
        )
        with Producer(store=stack.store) as producer:
            producer.create_topic("orders", 2)
            os.kill(reput, signal.SIGSTOP)
            try:
                producer.send("orders", b"early").result(60)
                options = {"path": str(stack.store), "columns": "body", **chosen}
                schema = PenstockSource(options).schema()
                reader = StoreStreamReader(parse_options(options), schema)
                start = reader.initialOffset()
                assert not reader.latestOffset(start, reader.getDefaultReadLimit())["offsets"]
            finally:
                os.kill(reput, signal.SIGCONT)
        end = start
        while not any(any(ends.values()) for ends in end["offsets"].values()):
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert _bodies(reader, start, end) == [b"early"]


def _bodies(reader: StoreStreamReader, start: Offset, end: Offset) -> list[bytes]:
    """Of a reader whose only column they are."""
    return [
        body.as_py()
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for body in batch.column(0)
    ]
