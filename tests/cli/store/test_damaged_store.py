"""A broker on a damaged store: it serves what is whole, says what is lost, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.store.directory import StoreDirectory

COUNT = 60


def _log(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


@pytest.fixture(params=["clean", "killed"])
def damaged(
    request: pytest.FixtureRequest, tmp_path: Path, broker_in: Callable[..., Any]
) -> tuple[Path, list[tuple[int, int, bytes]]]:
    """A store whose messages 20, 21 and 40 are damaged; its place, and (queue, offset, body)."""
    running = broker_in(tmp_path)
    with Producer(running.produce) as producer:
        producer.create_topic("orders", queues=2)
        for number in range(COUNT):
            producer.send("orders", b"%d" % number * 40, queue=number % 2)
        producer.flush()
    if request.param == "clean":
        assert running.stop() == 0
    else:
        running.kill()
    store = running.store
    with StoreDirectory(store) as opened:
        steps = [step for step in opened.scan_log() if step[1] is Kind.RECORD]
        records = [(step[0], decode_record(bytes(step[3]))) for step in steps]
    log = store / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    for number in (20, 21, 40):
        raw[records[number][0] + 95] ^= 1
    raw[records[21][0] + 5] ^= 1
    log.write_bytes(raw)
    (store / "checkpoint").unlink()  # it vouches for what is in front of it
    return tmp_path, [(r.queue_id, r.queue_offset, r.body) for _, r in records]


def test_a_broker_on_a_damaged_store_serves_what_is_whole_and_takes_nothing(
    damaged: tuple[Path, list[tuple[int, int, bytes]]], broker_in: Callable[..., Any]
) -> None:
    place, messages = damaged
    store = place / "store"
    before, was_clean = _log(store), not (store / "abort").exists()
    for _ in range(2):
        running = broker_in(place)
        said = running.said.read_text()
        assert "read-only=damaged" in running.ready
        assert said.count("damaged: ") == 2 and f"penstock store repair {store}" in said
        with Consumer(running.consume, "orders", start="earliest", follow=False) as consumer:
            got = sorted((m.queue_id, m.queue_offset, bytes(m.body)) for m in consumer)
            assert consumer.skipped == 3
        lost = [messages[number] for number in (20, 21, 40)]
        assert got == sorted(set(messages) - set(lost))
        with Producer(running.produce) as producer, pytest.raises(StoreUnavailable) as refused:
            producer.send("orders", b"x", queue=0).result(60)
        assert f"{store}/commitlog/{0:020d}, bytes " in str(refused.value)
        assert f"penstock store repair {store}" in str(refused.value)
        status = running.status()
        assert status["positions"]["read_only"] == 1
        assert [row["position"] for row in status["damaged"]] == [
            row["position"] for row in json.loads((store / "penstock/quarantine.json").read_text())
        ]
        assert running.stop() == 5
        assert _log(store) == before
        assert (store / "abort").exists() != was_clean


def test_status_names_the_damage(
    damaged: tuple[Path, Any], broker_in: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    running = broker_in(damaged[0])
    with pytest.raises(SystemExit):
        main(["status", "--store", str(running.store)])
    out = capsys.readouterr().out
    assert "read-only; the log is damaged" in out and "penstock store repair" in out


def test_recovery_show_tells_what_starts_have_found(
    damaged: tuple[Path, Any], broker_in: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    running = broker_in(damaged[0])
    running.stop()
    for arguments in ([], ["-o", "json"]):
        with pytest.raises(SystemExit):
            main(["recovery", "show", "--store", str(running.store), *arguments])
    table, _, row = capsys.readouterr().out.rstrip().rpartition("\n")
    found = json.loads(row)["found"]
    assert [each["size"] for each in found["quarantined"]] == [438, 219]
    assert found["log_end"] == found["scanned_bytes"] > 0 and found["messages"] == COUNT - 3
    assert table.count("damaged: ") == 2


def test_a_repaired_store_takes_messages_again(
    damaged: tuple[Path, Any], broker_in: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store = damaged[0] / "store"
    running = broker_in(damaged[0])
    with pytest.raises(SystemExit) as refused:
        main(["store", "repair", str(store), "--apply"])
    assert refused.value.code == 1 and "STORE_LOCKED" in capsys.readouterr().err
    running.stop()
    with pytest.raises(SystemExit) as ended:
        main(
            ["store", "repair", str(store), "--config", str(damaged[0] / "broker.toml"), "--apply"]
        )
    assert ended.value.code == 0
    assert "2 ranges, 3 messages lost" in capsys.readouterr().out
    running = broker_in(damaged[0])
    assert "read-only" not in running.ready
    with Producer(running.produce) as producer:
        assert producer.send("orders", b"x", queue=0).result(60).queue_offset == COUNT // 2
    with Consumer(running.consume, "orders", follow=False) as consumer:
        assert sum(1 for _ in consumer) == COUNT + 1 - 3
        assert consumer.skipped == 3, "tombstones are no messages"
    assert running.stop() == 0
