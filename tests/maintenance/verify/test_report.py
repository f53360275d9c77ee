"""What a check advises: the fewest commands that mend what it has found."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.maintenance.verify.report import MAX_LISTED, Findings
from penstock.shared.layout import StorePaths

REPAIR = "penstock store repair /store --apply"
REBUILD = "penstock store rebuild /store"


@pytest.mark.parametrize(
    ("kinds", "commands"),
    [
        ([], []),
        (["queue-entry-missing"], [f"{REBUILD} --queues"]),
        (["index-item"], [f"{REBUILD} --index"]),
        (["queue-entry-missing", "index-item"], [REBUILD]),
        # queues made from a record that names another's slot would be no better
        (["queue-offset", "queue-entry-missing"], [REPAIR]),
        (["queue-offset", "index-item"], [f"{REBUILD} --index"]),
        (["queue-offset"], []),
        (["log-damage"], [REPAIR]),
        (["log-damage", "queue-entry-missing", "index-item"], [REPAIR]),
        (["queue-segment-size"], [REPAIR]),
        *((["queue-entry-missing", each], [REPAIR]) for each in ("stray-file", "empty-segment")),
        *(([each], [REPAIR]) for each in ("checkpoint-size", "queue-lost")),
        (["geometry"], ["rm /store/penstock/geometry.json"]),
        (["geometry", "log-damage"], ["rm /store/penstock/geometry.json", REPAIR]),
        (["checkpoint-ahead"], ["mv /store/checkpoint /store/checkpoint.broken"]),
        (["checkpoint-ahead", "log-damage"], [REPAIR]),
    ],
)
def test_what_was_found_is_mended_by_these_commands(kinds: list[str], commands: list[str]) -> None:
    found = Findings()
    for kind in kinds:
        found.report(kind, ("a file", 0), None, "")
    assert found.advice(StorePaths(Path("/store"))) == commands
    assert found.log_damaged == ("log-damage" in kinds)


def test_a_problem_past_the_most_that_are_listed_counts_and_gives_advice() -> None:
    found = Findings()
    for _ in range(MAX_LISTED):
        found.report("index-item", ("a file", 0), None, "")
    found.report("log-damage", ("a file", 0), None, "")
    assert (len(found.problems), found.problem_count) == (MAX_LISTED, MAX_LISTED + 1)
    assert {each.kind for each in found.problems} == {"index-item"}
    assert found.advice(StorePaths(Path("/store"))) == [REPAIR]


def test_what_parts_of_a_check_have_found_is_told_as_if_one_had_found_it() -> None:
    """One has more than are listed, and has its only kind of damage among those."""
    parts, whole = [Findings() for _ in range(4)], Findings()
    first, _, many, last = parts
    found = [(first, "checkpoint-size"), (first, "index-item"), (last, "queue-entry-missing")]
    found[2:2] = [(many, "index-item")] * (MAX_LISTED + 1) + [(many, "log-damage")]
    for number, (part, kind) in enumerate(found):
        for each in part, whole:
            each.report(kind, ("a file", number), number, "why")
    together = Findings()
    assert not together.kinds and not together.log_damaged
    for part in parts:
        together.join(part.problems, part.problem_count, part.kinds)
        assert together.log_damaged == (part in (many, last)), "what came before is not forgotten"
    assert together.problems == whole.problems and together.problem_count == len(found)
    assert together.kinds == whole.kinds == sorted({kind for _, kind in found})
    paths = StorePaths(Path("/store"))
    assert together.advice(paths) == whole.advice(paths) == [REPAIR]
