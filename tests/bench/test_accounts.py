"""What processes cost: nothing that was used is forgotten."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from penstock.bench.loads.accounts import Accounts, ran
from penstock.bench.loads.busy import busy

# a process that has a child use the processor, waits for it, and then stays until stdin ends
PARENT = """\
import subprocess, sys
busy = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True); input()"
pipe = subprocess.PIPE
child = subprocess.Popen([sys.executable, "-c", busy], stdin=pipe, stdout=pipe)
child.stdout.readline()
print("used", flush=True)
input()
child.communicate(b"\\n")
print("ended", flush=True)
input()
"""


def test_what_a_child_used_still_counts_when_it_has_ended() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        accounts = Accounts({"parent": process.pid})
        assert process.stdout.readline() == b"used\n"
        before = accounts.cpu_s()["parent"]
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ended\n"
        after = accounts.cpu_s()["parent"]
        process.communicate(b"\n")
    assert 0.25 < before <= after  # in ticks of 0.01 s for each process and mode


def test_what_threads_have_run_is_counted_exactly_and_so_are_their_sleeps() -> None:
    before, began_ns = ran(os.getpid()), time.thread_time_ns()
    while time.thread_time_ns() - began_ns < 2_000_000:
        pass
    for _ in range(20):
        time.sleep(0.001)
    after = ran(os.getpid())
    assert after.ns - before.ns >= 2_000_000
    assert after.wakes - before.wakes >= 20


def test_the_busy_are_busy_and_none_is_left() -> None:
    with busy(2):
        burning = [each for each in psutil.Process().children() if "getppid" in str(each.cmdline())]
        assert len(burning) == 2
        deadline = time.monotonic() + 60
        while not all(ran(each.pid).ns > 10_000_000 for each in burning):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not any(each.is_running() for each in burning)
