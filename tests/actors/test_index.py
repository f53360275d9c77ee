"""The index between its actors: the reput puts keys in, the flusher syncs, the reader finds."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.flusher import Flusher
from penstock.actors.reader import Reader
from penstock.actors.reader.actor import SOON_MS
from penstock.actors.reput import Reput
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.index_layout import Geometry, decode_header
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.index.directory import index_files
from penstock.shared.index.query_turns import CATCH_UP_MS
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Queried, Query, QueryById, Refused, encode

SMALL = Geometry(slots=7, items=20)
SETTINGS = {
    "transient_store_pool_enable": False,
    "max_hash_slot_num": SMALL.slots,
    "max_index_num": SMALL.items,
}
EVER = 1 << 60
# only a hang takes this long, whatever else the machine does
HANG_S = 60


@pytest.fixture
def running(pipeline: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **settings: pipeline(**{**SETTINGS, **settings})


def _reach(broker: Any, stop: int | None = None) -> None:
    stop = broker.positions["wrote"] if stop is None else stop
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, stop)


def _contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in index_files(directory)]


def _expected(broker: Any, tmp_path: Path) -> list[bytes]:
    """The index that the log gives."""
    again = tmp_path / f"again-{len(list(tmp_path.iterdir()))}"
    again.mkdir()
    with StoreDirectory(broker.paths.root) as store:
        rebuild_index(store, again / "index", again, SMALL, lambda: 0)
    return _contents(again / "index")


def _append(broker: Any, count: int, start: int = 0) -> list[int]:
    """This many records with a unique key each: k0, k1, ...; where they end."""
    numbers = range(start, start + count)
    return [broker.append(properties={"UNIQ_KEY": f"k{number}"}) for number in numbers]


def test_consumers_see_what_the_disk_takes_no_index_of(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A file in the index's place stands for the disk."""
    broker = running()
    _append(broker, 3)
    _reach(broker)
    reput = broker.start(Reput)
    broker.paths.index.write_bytes(b"")
    work(reput)
    assert broker.positions["dispatch_error"] and not broker.positions["dispatched"]
    assert broker.positions["queued"] == broker.positions["wrote"]
    broker.paths.index.unlink()
    broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.positions["dispatched"] == broker.positions["wrote"]
    assert not broker.positions["dispatch_error"] and index_files(broker.paths.index)


def test_the_reput_writes_the_index_that_the_log_gives(
    running: Callable[..., Any], work: Callable[..., None], tmp_path: Path
) -> None:
    broker = running()
    reput = broker.start(Reput)
    for number in range(5):
        _append(broker, 13, start=13 * number)
        broker.append(3)  # without a key
        _reach(broker)
        work(reput)
    found = _contents(broker.paths.index)
    assert found == _expected(broker, tmp_path) and len(found) == 4


@pytest.mark.parametrize("back", [0, 1, 5, 30])
def test_a_successor_leaves_no_key_out_and_none_twice(
    running: Callable[..., Any], work: Callable[..., None], tmp_path: Path, back: int
) -> None:
    """Killed after the index's header and before `dispatched`, over a roll-over too."""
    broker = running()
    first = broker.start(Reput)
    steps = _append(broker, 45)
    _reach(broker)
    work(first)
    broker.crash(first)
    broker.positions.initialise("dispatched", steps[-1 - back])
    second = broker.start(Reput)
    _append(broker, 3, start=45)
    _reach(broker)
    work(second)
    assert _contents(broker.paths.index) == _expected(broker, tmp_path)


def test_without_message_index_enable_there_is_none(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running(message_index_enable=False)
    _append(broker, 3)
    _reach(broker)
    work(broker.start(Reput))
    assert not broker.paths.index.exists()


def test_a_disk_that_takes_no_key_is_told_and_tried_again(
    running: Callable[..., Any], work: Callable[..., None], tmp_path: Path
) -> None:
    """The limit on file sizes stands for the disk: queue entries fit, an index file does not."""
    broker = running(mapped_file_size_consume_queue_bytes=200, max_index_num=400)
    reput = broker.start(Reput)
    _append(broker, 9)
    _reach(broker)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        work(reput)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert broker.positions["dispatch_error"] == errno.EFBIG
    assert broker.positions["dispatched"] == 0
    assert broker.positions["queued"] == broker.positions["wrote"], "consumers need no index"
    broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.positions["dispatch_error"] == 0
    assert broker.positions["dispatched"] == broker.positions["queued"]
    (raw,) = _contents(broker.paths.index)
    assert decode_header(raw).next_item == 10


def test_the_flusher_tells_the_checkpoint_of_full_files_only(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running(flush_interval_consume_queue_ms=0, flush_consume_queue_thorough_interval_ms=0)
    reput, flusher = broker.start(Reput), broker.start(Flusher)
    _append(broker, 10)
    _reach(broker)
    work(reput)
    for _ in range(9):  # a round is several steps, and is due at once again
        flusher.work()
    assert load_checkpoint(broker.paths.checkpoint).index_timestamp_ms == 0
    broker.clock.advance(5000)
    _append(broker, 12, start=10)
    _reach(broker)
    work(reput)
    for _ in range(9):
        flusher.work()
    first, second = (decode_header(raw) for raw in _contents(broker.paths.index))
    assert first.next_item == SMALL.items and second.next_item == 4
    assert load_checkpoint(broker.paths.checkpoint).index_timestamp_ms == first.end_timestamp_ms


def test_delay_levels_are_the_configured_ones(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running(message_delay_level="7s 2d")
    frames = [
        Record(SCHEDULE_TOPIC, b"x", properties=encode_properties({"DELAY": level}))
        for level in ("1", "2", "9")
    ]
    broker.append_frame(SCHEDULE_TOPIC, 0, b"".join(map(encode_record, frames)))
    _reach(broker)
    work(broker.start(Reput))
    raw = (broker.paths.queue(SCHEDULE_TOPIC, 0) / f"{0:020d}").read_bytes()
    stored_ms = broker.clock.now_ms()
    waits = [code - stored_ms for _, size, code in ENTRY.iter_unpack(raw) if size]
    assert waits == [7000, 2 * 86_400_000, 2 * 86_400_000]


def _ask(broker: Any, reader: Any, request: Query | QueryById) -> tuple[Any, list[Record]]:
    (parts,) = broker.ask(reader, broker.client(broker.run.endpoints.consume), encode(request))
    answer = messages.decode_consume_answer(parts[0])
    found, at = [], 0
    while len(parts) > 1 and at < len(parts[1]):
        found.append(decode_record(parts[1], at))
        at += found[-1].total_size
    return answer, found


def _query(key: str, topic: str = "orders", most: int = 64, **changes: Any) -> Query:
    fields = {"begin_ms": 0, "end_ms": EVER, "unique": False, **changes}
    return Query(7, topic, key, most, **fields)


def test_the_reader_finds_by_key_and_by_id_what_is_dispatched(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running()
    steps = [0, *_append(broker, 30)]
    _reach(broker, steps[20])
    reput, reader = broker.start(Reput), broker.start(Reader)
    work(reput)
    for number in (0, 19):
        answer, (found,) = _ask(broker, reader, _query(f"k{number}"))
        assert answer == Queried(7) and found.physical_offset == steps[number]
        name = offset_message_id(found.store_host, steps[number])
        assert _ask(broker, reader, QueryById(8, name)) == (Queried(8), [found])
    # stored, but not to be seen yet
    assert _ask(broker, reader, _query("k20")) == (Queried(7), [])
    refused, _ = _ask(broker, reader, QueryById(9, offset_message_id(found.store_host, steps[20])))
    assert isinstance(refused, Refused) and refused.status == "QUERY_NOT_FOUND"
    _reach(broker)
    work(reput)
    assert len(_ask(broker, reader, _query("k20"))[1]) == 1
    assert _ask(broker, reader, _query("k20", topic="other"))[1] == []


def test_a_query_finds_what_was_acknowledged_before_it(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running()
    reput, reader = broker.start(Reput), broker.start(Reader)
    _append(broker, 2)
    _reach(broker)
    client = broker.client(broker.run.endpoints.consume)
    client.send(encode(_query("k1")))
    for _ in range(50):
        reader.work()
        assert not client.poll(2)
    assert reader.idle_ms() == SOON_MS, "the index rings nobody"
    work(reput)
    (parts,) = broker.ask(reader, client)
    assert reader.idle_ms() == QUIET_TICK_MS, "and after that it waits for nothing"
    assert messages.decode_consume_answer(parts[0]) == Queried(7) and parts[1]
    # where the reput does not come, the answer is what there is
    _append(broker, 1, start=2)
    _reach(broker)
    client.send(encode(_query("k2")))
    for _ in range(1000):
        reader.work()
        broker.clock.advance(CATCH_UP_MS)
        if client.poll(5):
            break
    assert client.recv_multipart()[1] == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (_query(""), "INVALID_ARGUMENT"),
        (_query("k" * 40_000), "INVALID_ARGUMENT"),
        (_query("k", most=0), "INVALID_ARGUMENT"),
        (_query("k", begin_ms=2, end_ms=1), "INVALID_ARGUMENT"),
        (_query("k", topic="no/topic"), "INVALID_ARGUMENT"),
        (QueryById(7, "no id"), "INVALID_ARGUMENT"),
        (QueryById(7, "FF" * 16), "QUERY_NOT_FOUND"),
    ],
)
def test_a_query_that_cannot_be_is_refused_and_harms_nobody(
    running: Callable[..., Any], work: Callable[..., None], request_: Query | QueryById, status: str
) -> None:
    broker = running()
    _append(broker, 1)
    _reach(broker)
    reput, reader = broker.start(Reput), broker.start(Reader)
    work(reput)
    refused, _ = _ask(broker, reader, request_)
    assert isinstance(refused, Refused) and refused.status == status
    assert len(_ask(broker, reader, _query("k0"))[1]) == 1


def test_a_reader_does_not_sleep_while_a_query_is_under_way(
    running: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.shared.index.query_turns.TURN_MS", 0)
    broker = running()
    _append(broker, 3)
    _reach(broker)
    reput, reader = broker.start(Reput), broker.start(Reader)
    work(reput)
    client = broker.client(broker.run.endpoints.consume)
    client.send(encode(_query("k0")))
    deadline = time.monotonic() + HANG_S
    while not reader._queries.waiting:
        assert time.monotonic() < deadline
        reader.work()
    assert reader.has_more(), "each turn ends after a step"
    ((header, payload),) = broker.ask(reader, client)
    assert isinstance(messages.decode_consume_answer(header), Queried) and payload
    reader.work()
    assert not reader.has_more()


def test_a_deleted_file_is_closed_by_the_reader_too(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running()
    _append(broker, 3)
    _reach(broker)
    reput, reader = broker.start(Reput), broker.start(Reader)
    work(reput)
    assert len(_ask(broker, reader, _query("k0"))[1]) == 1
    (path,) = index_files(broker.paths.index)

    def read_only() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in lines if str(path) in line and " r--s " in line]

    assert len(read_only()) == 1
    path.unlink()
    reader.release_deleted()
    assert read_only() == []


def test_as_many_come_as_the_configuration_allows(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = running(max_msgs_num_batch=5, default_query_max_num=3, max_index_num=200)
    for _ in range(40):
        broker.append(properties={"UNIQ_KEY": "same"})
    _reach(broker)
    reput, reader = broker.start(Reput), broker.start(Reader)
    work(reput)
    newest = [record.queue_offset for record in _ask(broker, reader, _query("same"))[1]]
    assert newest == [35, 36, 37, 38, 39]
    assert len(_ask(broker, reader, _query("same", most=2))[1]) == 2
    assert len(_ask(broker, reader, _query("same", unique=True))[1]) == 3
