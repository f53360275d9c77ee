"""What a process is doing, as the kernel tells it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from penstock.shared.memory.process_state import is_stopped, process_state


def test_a_process_is_stopped_from_sigstop_on_until_it_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert is_stopped(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED)
        assert not is_stopped(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(child.pid) == "Z"
    with pytest.raises(FileNotFoundError):
        process_state(child.pid)
