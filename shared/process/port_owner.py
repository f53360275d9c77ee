"""The owner of a TCP port of this machine, for an error to name: a broker and its store, or a
program.

A broker answers for itself, whichever user's it is and wherever it runs. Of any other owner the
kernel knows the socket, and /proc the process that has it open, if it is this user's. Asking
changes nothing.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from penstock.shared.errors import PenstockError
from penstock.shared.wire.ask_broker import ask_broker
from penstock.shared.wire.endpoint import Address, shown

# Short, as a user waits for the error.
ASK_MS = 1000
# the state of a listening socket in /proc/net/tcp, as the kernel writes it
_LISTEN = "0A"
_MOST_SHOWN = 120
_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def port_owner(host: str, port: int) -> str:
    """The listener there, as words for an error; "" where it cannot be known.

    Never raises: the error that it is for must come all the same.
    """
    with suppress(PenstockError):
        # a broker that listens on all addresses is asked at this machine's own
        there = shown(Address(_THIS_MACHINE.get(host, host), port))
        broker = ask_broker(there, ASK_MS)
        return f"the broker of {broker.store} (pid {broker.pid}) has it"
    pid = _listener(port)
    return f"process {pid} has it: {_command(pid)}" if pid else ""


def _listener(port: int) -> int:
    """The oldest process that listens on the port; 0 if none is seen."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    found = []
    for process in Path("/proc").iterdir() if sockets else ():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # another user's, or gone by now
            if any(os.readlink(handle) in sockets for handle in (process / "fd").iterdir()):
                found.append(int(process.name))
    # a server's workers have inherited it from their parent, which is older
    return min(found, default=0)


def _inodes(port: int) -> list[str]:
    """The sockets that listen on the port, at any address of this network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines():
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "it is gone by now"
    shown_words = shlex.join(os.fsdecode(word) for word in words)
    return shown_words if len(shown_words) <= _MOST_SHOWN else shown_words[:_MOST_SHOWN] + "..."
