"""The owner of a port, found among processes that listen elsewhere."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from penstock.shared.process.port_owner import port_owner

# until its input ends
LISTENS = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_the_process_that_is_named_listens_on_this_very_port() -> None:
    command = [sys.executable, "-c", LISTENS]
    # this process is older than the other, and has a listener and a connection of its own
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_connection(own.getsockname()),
        Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        found = port_owner("127.0.0.1", int(other.stdout.readline()))
    assert found.startswith(f"process {other.pid} has it: ")


@pytest.mark.parametrize(("length", "shown"), [(120, 120), (121, 120)])
def test_a_long_command_is_shown_in_part(tmp_path: Path, length: int, shown: int) -> None:
    (tmp_path / "listen.py").write_text(LISTENS)
    command = [sys.executable, "listen.py", ""]
    command[-1] = "x" * (length - len(shlex.join(command[:-1])) - 1)
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=tmp_path) as other:
        assert other.stdout is not None
        found = port_owner("127.0.0.1", int(other.stdout.readline()))
    all_of_it = shlex.join(command)
    assert len(all_of_it) == length
    dots = "..." if shown < length else ""
    assert found == f"process {other.pid} has it: {all_of_it[:shown]}{dots}"
