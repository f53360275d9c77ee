"""What `penstock doctor` makes of limits and clocks; the judgements are pure."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.maintenance.machine.clock import clock, is_synchronised
from penstock.maintenance.machine.limits import (
    address_space,
    check_limits,
    locked_memory,
    open_files,
    processes,
)
from penstock.shared.config import Config

NO_LIMIT = resource.RLIM_INFINITY
WAIT_S = 120


@pytest.mark.parametrize("limit", [NO_LIMIT, 1 << 40])
def test_a_limit_that_is_high_enough_is_fine(limit: int) -> None:
    config = Config()
    for check in (
        *(open_files(limit), processes(limit, 300)),
        *(locked_memory(limit, config), address_space(limit, config)),
    ):
        assert (check.state, check.remedy) == ("fine", ""), check


def test_a_limit_that_is_too_low_says_how_much_is_needed_and_how_to_raise_it() -> None:
    config = Config()
    for check, needed in (
        (open_files(1024), "ulimit -n 4096"),
        (processes(500, 450), "TasksMax="),
        (locked_memory(8 << 20, config), "below 2048 MiB: ulimit -l 2097152"),
        (address_space(4 << 30, config), "takes 6144 MiB: ulimit -v unlimited"),
    ):
        assert check.state == "warning" and needed in check.remedy, check
    assert processes(500, 400).state == "fine"


def test_the_limits_of_its_own_process_are_what_doctor_looks_at() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, NO_LIMIT))

    flags = ["--set", "warm_mapped_file_enable=true", "--set", "transient_store_pool_enable=false"]
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "doctor", "-o", "json", *flags],
        preexec_fn=limit, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    rows = {row["name"]: row for row in map(json.loads, ran.stdout.splitlines())}
    assert rows["address space"]["found"] == "at most 4096 MiB for a process"
    assert rows["address space"]["state"] == "warning"
    assert {"processes", "open files", "locked memory"} <= rows.keys()


def test_a_container_may_have_fewer_processes_than_its_user(tmp_path: Path) -> None:
    def found() -> str:
        (check,) = (each for each in check_limits(Config(), tmp_path) if each.name == "processes")
        return check.found

    of_the_user = found()
    (tmp_path / "pids.max").write_text("37\n")
    assert found().startswith("at most 37 with their threads")
    (tmp_path / "pids.max").write_text("max\n")
    assert found().split(",")[0] == of_the_user.split(",")[0]


def test_a_clock_that_ntp_does_not_set_is_a_warning_and_one_of_the_past_a_problem() -> None:
    now_s = time.time()
    assert clock(now_s, True).state == clock(now_s, None).state == "fine"
    assert "unknown" in clock(now_s, None).found
    loose = clock(now_s, False)
    assert loose.state == "warning" and "timedatectl set-ntp true" in loose.remedy
    assert clock(0, True).state == "problem"


def test_whether_ntp_sets_the_clock_is_what_the_kernel_says() -> None:
    try:
        said = subprocess.check_output(["timedatectl", "show", "-p", "NTPSynchronized"], text=True)
    except (OSError, subprocess.CalledProcessError):
        assert is_synchronised() in (True, False, None)
        return
    assert is_synchronised() in (said.strip() == "NTPSynchronized=yes", None)
