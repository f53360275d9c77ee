"""The page about scaling says what follows from the measurements beside it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from penstock.bench.scaling import MACHINES, ends, load_of, page

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_is_what_the_measurements_make_of_it() -> None:
    found = json.loads((DOCS / "performance.json").read_bytes())
    assert page(found) == (DOCS / "scaling.md").read_text("utf-8"), (
        "write it again: python -m penstock.bench.scaling docs"
    )


def test_its_figures_are_medians_and_its_ends_the_arithmetic_that_it_shows() -> None:
    found = json.loads((DOCS / "performance.json").read_bytes())
    load = load_of(found, 1024)
    sent = [
        each
        for each in found["rows"]
        if each["name"] == "Penstock" and each["kind"] == "packed" and each["size"] == 1024
    ]
    durable = [each for each in sent if each["ack"] == "durable"]
    assert load.sent_per_s == median(each["messages_per_s"] for each in durable)
    assert load.send_cpu_s[0] == median(each["cpu_s_per_million"]["broker"] for each in durable)
    assert 1024 < load.record_bytes < load.disk_bytes < 1024 + 300
    limits = ends(load, MACHINES[0])
    assert limits["disk"] * load.disk_bytes == pytest.approx(125e6)
    assert limits["network"] * load.record_bytes * 8 == pytest.approx(1e9)
    text = (DOCS / "scaling.md").read_text("utf-8")
    for number in (load.sent_per_s, *limits.values()):
        assert f"{number:,.0f}" in text
