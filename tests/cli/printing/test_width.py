"""Eighty columns and 24 lines: nothing that one copies is cut or folded, and a status fits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.printing.table import cells_of, lay_out
from penstock.client import Producer

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
COLUMNS, LINES = 80, 24


def _screen(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def test_a_status_fits_the_screen_and_has_its_endpoints_whole(
    broker: Any, terminal: Callable[..., Any]
) -> None:
    with Producer(broker.produce) as producer:
        producer.send("t", b"x").result(60)
    shown = terminal("status", "--store", broker.store)
    assert shown.end() == 0
    lines = _screen(shown.text)
    # a prompt wants a line, and another word of the retention has room
    assert len(lines) <= LINES - 2
    assert max(len(line) for line in lines if str(broker.store) not in line) <= COLUMNS
    for word in (broker.produce, broker.consume, str(broker.store.resolve())):
        assert word in shown.text
    assert "behind" in shown.text and re.search(r"[\d,]+ messages/s, .+/s", shown.text)


def test_every_table_keeps_what_is_copied_in_one_piece(
    broker: Any, terminal: Callable[..., Any]
) -> None:
    topic = "a-topic-with-a-name-that-is-longer-than-any-column-of-a-table-may-be-" + "x" * 40
    with Producer(broker.produce) as producer:
        receipt = producer.send(topic, b"y" * 59, keys="a-key-" + "k" * 60).result(60)
    store = broker.store
    for words, whole in (
        (("topics", "ls"), [topic]),
        (("query", "id", receipt.message_id), [receipt.message_id, "a-key-" + "k" * 60, "y" * 59]),
        (("consume", topic, "-o", "table"), [receipt.message_id, "a-key-" + "k" * 60, "y" * 59]),
        (("status", "--all"), [f"ipc://{broker.status()['run_directory']}/produce.ipc"]),
    ):
        shown = terminal(*words, "--store", store)
        assert shown.end() == 0
        assert [each for each in whole if each not in shown.text] == [], shown.text
    for words, whole in (
        (("store", "info", store), [topic, "00000000000000000000"]),
        (("store", "verify", store), [topic]),
        (("store", "inspect", store, "--body"), [topic, "a-key-" + "k" * 60, "y" * 59]),
        (("config", "show", "--set", f"store_path_root_dir={store}"), [str(store), "10m 20m 30m"]),
    ):
        shown = terminal(*words)
        assert shown.end() == 0
        assert [each for each in whole if each not in shown.text] == [], shown.text


def test_json_of_a_status_has_everything_and_what_rates_are_counted_from(broker: Any) -> None:
    words = [*PENSTOCK, "status", "-o", "json", "--store", str(broker.store)]
    first = json.loads(subprocess.check_output(words))
    with Producer(broker.produce) as producer:
        for _ in range(10):
            producer.send("counted", b"x").result(60)
    last = first
    while last["messages"] < first["messages"] + 10:  # the reput is as fast as it likes
        last = json.loads(subprocess.check_output(words))
    assert last["messages"] == first["messages"] + 10
    assert last["monotonic_s"] > first["monotonic_s"]
    assert last["positions"]["wrote"] > first["positions"]["wrote"]


def test_a_brokers_lines_have_their_time(broker_in: Callable[..., Any], tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    writer = next(a["pid"] for a in broker.status()["actors"] if a["name"] == "writer")
    subprocess.run(["kill", "-SEGV", str(writer)], check=True)
    broker.stop()
    lines = broker.said.read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z penstock (supervisor|[a-z]+): .+"
    assert any("starting another" in line for line in lines)
    assert [line for line in lines if not re.fullmatch(stamp, line)] == []


def test_a_few_long_cells_cost_the_other_rows_no_line() -> None:
    rows = [(f"port remoting_{number}", "fine", "is free") for number in range(12)]
    rows[3] = ("port remoting_vip", "warning", "a broker of this machine has it, " * 2)
    rows[7] = rows[8] = ("disk", "fine", "x" * 60)
    layout = lay_out(("what", "is", "found"), rows, 60)
    lines = {row[0]: list(layout.row(cells_of(row))) for row in rows}
    assert {name for name, shown in lines.items() if len(shown) > 1} == {rows[3][0], "disk"}
    assert lines["port remoting_vip"][0].split() == ["port", "remoting_vip", "warning"]


@given(
    st.lists(
        st.tuples(st.text(max_size=90), st.integers(), st.text("ab c", max_size=50)), max_size=12
    ),
    st.one_of(st.none(), st.integers(10, 120)),
)
def test_no_cell_is_ever_lost_or_broken(rows: list[tuple[str, int, str]], room: int | None) -> None:
    layout = lay_out(("first", "number", "a longer heading"), rows, room)
    assert layout.head().split()[0] == "first" or room is not None
    for row in rows:
        text = "\n".join(layout.row(cells_of(row)))
        for cell in cells_of(row):
            assert cell.rstrip() in text
        if room is None:
            assert "\n" not in text
