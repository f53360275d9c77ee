"""Crash points do what they are armed for, in one process, in forks, and counted over them all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared import faults
from penstock.shared.errors import ConfigError
from penstock.shared.faults import POINTS, Fault, Faults, parse_faults

POINT, OTHER = "commit.before_cursor", "flush.roll"


def _in_a_fork(action: Callable[[], object]) -> int:
    """Do it in a process of its own; its wait status, which a stop is as well."""
    child = os.fork()
    if child == 0:
        action()
        os._exit(0)
    status = os.waitpid(child, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return status


def _lines(file: Path) -> Counter[str]:
    return Counter(line.split(" ")[0] for line in file.read_text().splitlines())


@given(
    st.dictionaries(
        st.sampled_from(sorted(POINTS)),
        st.tuples(
            st.sampled_from(["crash", "stop", "delay:50", "yes:30", "upto:20", "error:ENOSPC"]),
            st.integers(1, 999),
            st.integers(1, 999),
        ),
    )
)
def test_what_is_written_is_what_is_armed(wanted: dict[str, tuple[str, int, int]]) -> None:
    arguments = {"delay:50": 50, "yes:30": 30, "upto:20": 20, "error:ENOSPC": errno.ENOSPC}
    text = " ".join(f"{name}={what}@{n}x{m}" for name, (what, n, m) in wanted.items())
    assert parse_faults(text) == {
        name: Fault(what.split(":")[0], arguments.get(what, 0), n, m)
        for name, (what, n, m) in wanted.items()
    }


def test_it_fires_once_and_at_the_first_pass_unless_told_otherwise() -> None:
    assert parse_faults(f"{POINT}=crash") == {POINT: Fault("crash", 0, 1, 1)}
    assert parse_faults("  ") == {}


@pytest.mark.parametrize(
    "wrong",
    [
        POINT,
        f"{POINT}=explode",
        f"{POINT}=crash@",
        f"{POINT}=crash@-1",
        f"{POINT}=crashx",
        f"{POINT}=delay",
        f"{POINT}=yes",
        f"{POINT}=error:enospc",
        f"{POINT}=error:ENOTHING",
        f"{POINT}=crash;{OTHER}=crash",
        "commit.nowhere=crash",
    ],
)
def test_what_is_no_fault_is_refused_with_a_typed_error(wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_faults(f"{OTHER}=crash {wrong}")
    assert raised.value.value and "see penstock chaos --points" in raised.value.hint


def test_a_crash_is_a_kill_and_comes_at_the_nth_pass(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    armed = Faults(parse_faults(f"{POINT}=crash@3"), str(fired))

    def pass_it(times: int) -> Callable[[], object]:
        return lambda: [armed.hit(POINT) for _ in range(times)]

    assert _in_a_fork(pass_it(2)) == 0 and not fired.exists()
    assert os.WTERMSIG(_in_a_fork(pass_it(3))) == signal.SIGKILL
    assert _lines(fired) == {POINT: 1}
    assert _in_a_fork(pass_it(30)) == 0, "once in all processes"


def test_a_stop_is_a_stop() -> None:
    armed = Faults(parse_faults(f"{POINT}=stop"), "")
    assert os.WSTOPSIG(_in_a_fork(lambda: armed.hit(POINT))) == signal.SIGSTOP


def test_a_delay_takes_its_time_and_the_work_goes_on() -> None:
    armed = Faults(parse_faults(f"{POINT}=delay:30"), "")
    began = time.monotonic()
    assert not armed.hit(POINT)
    assert time.monotonic() - began >= 0.03


def test_an_error_is_raised_as_the_system_would_and_names_the_point() -> None:
    armed = Faults(parse_faults(f"{POINT}=error:ENOSPCx2"), "")
    for _ in range(2):
        with pytest.raises(OSError, match=POINT) as raised:
            armed.hit(POINT)
        assert raised.value.errno == errno.ENOSPC
    assert not armed.hit(POINT)


@pytest.mark.parametrize(
    ("percent", "least", "most"), [(0, 0, 0), (30, 200, 400), (100, 1000, 1000)]
)
def test_a_question_is_answered_so_often(percent: int, least: int, most: int) -> None:
    armed = Faults(parse_faults(f"bell.lost=yes:{percent}"), "")
    assert least <= sum(armed.hit("bell.lost") for _ in range(1000)) <= most
    assert not armed.hit("bell.repeated"), "it is not armed"


def test_firings_are_counted_over_all_processes_at_once(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    armed = Faults(parse_faults(f"{POINT}=delay:0x20 {OTHER}=delay:0x3"), str(fired))
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            for _ in range(50):
                armed.hit(POINT)
                armed.hit(OTHER)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert _lines(fired) == {POINT: 20, OTHER: 3}
    assert {int(line.split(" ")[1]) for line in fired.read_text().splitlines()} <= set(children)


def test_without_the_file_each_process_counts_for_itself() -> None:
    armed = Faults(parse_faults(f"{POINT}=crash"), "")
    assert [os.WTERMSIG(_in_a_fork(lambda: armed.hit(POINT))) for _ in range(2)] == [9, 9]


def test_unarmed_a_point_is_a_function_that_does_nothing() -> None:
    assert faults.crash_point is faults._nothing and not faults.crash_point(POINT)


def test_the_environment_arms_a_process(tmp_path: Path) -> None:
    code = f"from penstock.shared.faults import crash_point; crash_point({POINT!r}); print('alive')"
    fired = tmp_path / "fired"
    environment = {
        **os.environ,
        faults.VARIABLE: f"{POINT}=crash",
        faults.FIRED_VARIABLE: str(fired),
    }
    codes = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
        for _ in range(2)
    ]
    assert [each.returncode for each in codes] == [-signal.SIGKILL, 0]
    assert codes[1].stdout == b"alive\n" and _lines(fired) == {POINT: 1}


@pytest.mark.parametrize("content", [b"dear diary\n", b"x" * (2 << 20)])
def test_a_file_that_is_not_of_firings_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    diary, link = tmp_path / "diary", tmp_path / "link"
    diary.write_bytes(content)
    link.symlink_to(tmp_path / "made")
    for fired in (diary, link):
        armed = Faults(parse_faults(f"{POINT}=error:EIOx2"), str(fired))
        for _ in range(2):
            with pytest.raises(OSError):
                armed.hit(POINT)
        armed.hit(POINT)  # it counts by itself
    assert diary.read_bytes() == content and not (tmp_path / "made").exists()


def test_a_point_can_be_armed_for_one_pair_alone_and_says_how_late() -> None:
    text = "bell.late/writer-committer=upto:40 bell.lost=yes:100 bell.lost/writer-reput=yes:0"
    armed = Faults(parse_faults(text), "")
    assert {armed.hit("bell.late", "writer-committer") for _ in range(999)} == set(range(41))
    assert not armed.hit("bell.late", "flusher-writer")
    assert armed.hit("bell.lost", "flusher-writer")
    assert not armed.hit("bell.lost", "writer-reput"), "what is said for it goes before"
