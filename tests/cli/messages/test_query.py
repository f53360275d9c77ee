"""`penstock query` against a broker, and on the files of a store of RocketMQ's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.loads.stack import running_stack
from penstock.cli.main import main
from penstock.client.aio import MessageQuery as AsyncMessageQuery
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer
from penstock.shared.errors import ConnectError, InvalidArgument, MessageNotFound
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.directory import StoreDirectory

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process: its exit code and its output."""

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return code, capsys.readouterr().out

    return call


def test_messages_are_found_through_a_broker_and_in_the_files_it_leaves(
    run: Run, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    small = ["max_hash_slot_num = 100", "max_index_num = 1000"]
    geometry = ("--index-slots", 100, "--index-items", 1000)
    with running_stack(store, small) as stack:
        with Producer(stack.produce) as producer:
            receipts = [
                producer.send("orders", b"%d" % n, keys=f"k{n % 2} order-{n}").result(60)
                for n in range(6)
            ]
        _ask(stack.consume, receipts)
        _check(run, store, receipts, ())
    _check(run, store, receipts, geometry)


def _ask(endpoint: str, receipts: list[Any]) -> None:
    with MessageQuery(endpoint) as query:
        assert [m.body for m in query.by_key("orders", "k1")] == [b"1", b"3", b"5"]
        assert [m.body for m in query.by_key("orders", "k1", 2)] == [b"3", b"5"]
        assert [m.body for m in query.by_unique_key("orders", receipts[2].unique_key)] == [b"2"]
        assert query.by_unique_key("orders", "k1") == []
        assert query.by_id(receipts[4].message_id).body == b"4"
        assert query.by_key("orders", "k1", end=receipts[0].store_timestamp_ms - 5000) == []
        with pytest.raises(MessageNotFound):
            query.by_id("00" * 16)
        with pytest.raises(InvalidArgument):
            query.by_key("orders", "k", begin=2, end=1)
        assert len(query.by_key("orders", "k0")) == 3, "goes on after an error"


def _check(run: Run, store: Path, receipts: list[Any], more: tuple[object, ...]) -> None:
    where = ("--store", store, *more, "-o", "json")
    code, output = run("query", "key", "orders", "k0", "--begin", "-1h", *where)
    assert code == 0
    assert [json.loads(line)["body"] for line in output.splitlines()] == ["0", "2", "4"]
    code, output = run("query", "id", receipts[3].message_id, *where)
    assert (code, json.loads(output)["keys"]) == (0, "k1 order-3")
    code, output = run("query", "unique-key", "orders", receipts[5].unique_key, *where[:-2])
    assert code == 0 and receipts[5].message_id in output and "order-5" in output
    assert run("query", "key", "orders", "absent", *where) == (1, "")
    assert run("query", "id", "00" * 16, *where)[0] == 1
    assert run("query", "id", "nonsense", *where)[0] == 2


def test_a_hint_is_a_command_that_works_where_no_broker_runs(
    store_builder: Callable[..., Path],
    make_record: Callable[..., Record],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = store_builder([make_record()])
    with StoreDirectory(root) as store:
        rebuild_index(store, root / "index", root, Geometry(5, 9), lambda: 0)
    monkeypatch.chdir(root.parent)
    with pytest.raises(SystemExit, match="1"):
        main(["query", "key", "orders", "absent", "--store", str(root)])
    hint = capsys.readouterr().err.rpartition("and when: penstock ")[2]
    assert hint == f"store export {root} orders --out orders.jsonl\n"
    with pytest.raises(SystemExit, match="0"):
        main(hint.split())
    assert len(Path("orders.jsonl").read_text().splitlines()) == 1


def test_the_asyncio_twin_finds_the_same(tmp_path: Path) -> None:
    async def ask(endpoint: str, receipt: Any) -> None:
        async with AsyncMessageQuery(endpoint) as query:
            (found,) = await query.by_key("orders", "k")
            assert await query.by_unique_key("orders", receipt.unique_key) == [found]
            assert await query.by_id(receipt.message_id) == found

    with running_stack(tmp_path / "store") as stack:
        with Producer(stack.produce) as producer:
            receipt = producer.send("orders", b"x", keys="k").result(60)
        asyncio.run(asyncio.wait_for(ask(stack.consume, receipt), 30))


def test_nobody_there_is_an_error_in_time() -> None:
    with pytest.raises(ConnectError, match="127.0.0.1:9"):
        MessageQuery("tcp://127.0.0.1:9", timeout_ms=50)


def test_a_store_is_asked_without_its_geometry_and_a_given_one_counts(
    run: Run, store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> None:
    root = store_builder([make_record(properties=encode_properties({"UNIQ_KEY": "u"}))])
    with StoreDirectory(root) as store:
        rebuild_index(store, root / "index", root, Geometry(5, 9), lambda: 0)
    assert run("query", "key", "orders", "u", "--store", root)[0] == 0
    assert run("query", "key", "orders", "u", "--store", root, "--index-slots", 6)[0] == 5
    geometry = ("--index-slots", 5, "--index-items", 9)
    assert run("query", "key", "orders", "u", "--store", root, *geometry)[0] == 0
