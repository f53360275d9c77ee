"""Every file of examples/ is run as its head says, against a broker that it finds by itself."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import penstock
from penstock.testing import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 120


@pytest.fixture(scope="module")
def owned() -> Iterator[Broker]:
    with penstock.open() as broker:
        for topic in ("orders", "bills"):
            broker.producer().create_topic(topic, 1)
        yield broker


def start(name: str, broker: Broker, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, str(EXAMPLES / name)],
        env={**os.environ, "PENSTOCK_STORE": str(broker.store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_all_of_them_are_run_here() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"}
    said = ast.unparse(ast.parse(Path(__file__).read_text("utf-8")))
    assert len(names) == 5 and {name for name in names if f"'{name}'" not in said} == set()


def test_the_commands_in_their_heads_are_right() -> None:
    """Those that need no other program, and end by themselves."""
    lines = []
    for file in EXAMPLES.glob("*.py"):
        head = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        lines += re.findall(r"^(?!pip ).*\bpenstock (?!up)\w+ .*$", head.partition("\n\n")[2], re.M)
    assert lines
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with penstock.open() as broker:
        environment = {**os.environ, "PATH": path, "PENSTOCK_STORE": str(broker.store)}
        for line in lines:
            ran = subprocess.run(
                ["sh", "-c", line], env=environment, capture_output=True, text=True
            )
            assert ran.returncode == 0, f"{line}: {ran.stderr}"


def test_the_worker_bills_orders_until_it_is_stopped(owned: Broker) -> None:
    owned.producer().send("orders", {"number": 17, "customer": "Ada"}).result(WAIT_S)
    with start("worker.py", owned) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("billed 17")
        worker.terminate()
        assert worker.stdout.read() == "" and worker.wait(WAIT_S) == 0
    (bill,) = owned.consumer("bills", follow=False)
    assert bill.decode() == {"order": 17, "text": "for Ada"}


def test_the_coroutines_send_and_read(owned: Broker) -> None:
    said, _ = start("asyncio_client.py", owned).communicate(timeout=WAIT_S)
    assert said.count("stored at") == 3 and said.endswith("{'celsius': 22}\n"), said


def test_the_tests_of_the_worker_pass(owned: Broker) -> None:
    with start("test_worker.py", owned, "-m", "pytest", "-q", "-p", "no:cacheprovider") as ran:
        said, _ = ran.communicate(timeout=WAIT_S)
    assert "2 passed" in said, said


def test_the_web_service_answers_when_the_order_is_stored(owned: Broker) -> None:
    testclient = pytest.importorskip("fastapi.testclient", reason="FastAPI is not installed")
    app = run_path(str(EXAMPLES / "fastapi_app.py"))["app"]
    with penstock.using(store=owned.store), testclient.TestClient(app) as client:
        answer = client.post("/orders", json={"number": 18, "customer": "Bo"})
        assert client.post("/orders", json={"number": "x"}).status_code == 422
    assert answer.status_code == 201, answer.text
    (found,) = [owned.query().by_id(answer.json()["message_id"])]
    assert found.decode() == {"number": 18, "customer": "Bo"} and found.keys == "18"


def test_the_cells_of_the_notebook_show_what_they_end_with(owned: Broker) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text("utf-8"))["cells"]
    scope: dict[str, Any] = {}
    pages = []
    with penstock.using(store=owned.store):
        for cell in cells:
            if cell["cell_type"] == "code":
                pages.append(_shown("".join(cell["source"]), scope))
    assert str(owned.store) in pages[0] and "message_id" in pages[1] and "hello" in pages[2]
    assert all(page.startswith("<table>") for page in pages[:3])
    assert pages[3] == "[{'text': 'hello'}]"


def _shown(source: str, scope: dict[str, Any]) -> str:
    """Run a cell; what a notebook shows of its last expression."""
    parsed = ast.parse(source)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    exec(compile(parsed, "cell", "exec"), scope)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    page = getattr(value, "_repr_html_", None)
    return str(page()) if page else repr(value)
