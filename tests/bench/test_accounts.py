"""What processes cost: nothing that was used is forgotten."""

from __future__ import annotations

import subprocess
import sys

from penstock.bench.accounts import Accounts

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
