"""A sleep that ends when the process has worked, whoever started it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import signal, socket, time
from contextlib import suppress
from penstock.shared.files.readable import is_readable
from penstock.shared.process.inflow import wake_by_work

woken, waker = socket.socketpair()
for end in (woken, waker):
    end.setblocking(False)
signal.set_wakeup_fd(waker.fileno())
# as a program may have done that embeds a broker
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])

def worked_until_woken(most_s):
    end = time.process_time() + most_s
    while time.process_time() < end:
        if is_readable(woken.fileno(), 0):
            woken.recv(64)
            return True
    return False

wake_by_work(20)
assert all([worked_until_woken(2) for _ in range(3)])
wake_by_work(0)
with suppress(BlockingIOError):
    woken.recv(64)
assert not worked_until_woken(0.2)
"""


def test_a_process_is_woken_each_time_that_it_has_worked_until_it_wants_that_no_longer() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)
