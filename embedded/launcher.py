"""The launcher: a program's helper process, which forks a supervisor for each requested broker.

It owns the brokers' processes: it is their parent, sees each of them end, and then removes what is
left of a temporary store, even if the broker was killed. It has imported everything that a broker
needs, and never has a thread, so that it can fork at any time. When its program is gone, it waits
for the brokers, which stop by themselves, and ends.

It must not know what a broker does, which is the supervisor's business. It is a program of its own
(`python -m penstock.embedded.launcher FD`), because a program with threads cannot be forked safely.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import msgspec

from penstock.embedded.messages import Launch, Ready, failure
from penstock.embedded.temporary_store import remove_temporary
from penstock.shared.clock import SystemClock
from penstock.shared.config_sources import load_config
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.memory.roster import ROSTER
from penstock.shared.process.actor import import_actors
from penstock.shared.process.log_line import log_line
from penstock.shared.store.geometry import settled_sizes
from penstock.supervisor import Supervisor

# The largest request; most of it is an environment.
REQUEST_BYTES = 1 << 20


class _Child(NamedTuple):
    channel: socket.socket
    launch: Launch


_decoder: msgspec.json.Decoder[Launch] = msgspec.json.Decoder(Launch)


class Launcher:
    """Serves the program at the other end of `program`."""

    def __init__(self, program: socket.socket) -> None:
        self._program = program
        self._children: dict[int, _Child] = {}
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def serve(self) -> None:
        """Serve until the program is gone and every broker has ended."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # not select, which takes no descriptors above 1023: the inherited one may be higher
        sources = select.poll()
        for each in (self._program, self._woken):
            sources.register(each, select.POLLIN)
        is_wanted = True
        while is_wanted or self._children:
            ready = {handle for handle, _ in sources.poll()}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
                self._reap()
            if self._program.fileno() in ready and not self._take_request():
                sources.unregister(self._program)
                is_wanted = False

    def _take_request(self) -> bool:
        """Start a broker. False if the program, which could want one, is gone."""
        data, files, _, _ = socket.recv_fds(self._program, REQUEST_BYTES, 2)
        if not data:
            return False
        launch = _decoder.decode(data)
        if len(files) < 2:  # descriptors have run out: the program sees its channel's end
            for each in files:
                os.close(each)
            remove_temporary(launch)
            return True
        channel, log = socket.socket(fileno=files[0]), files[1]
        try:
            pid = os.fork()
        except OSError as error:
            refused = StoreUnavailable("no process can be started", error, "free some, then again")
            channel.send(msgspec.json.encode(failure(refused)))
            remove_temporary(launch)
            channel.close()
        else:
            if pid == 0:
                self._become(launch, channel, log)
            self._children[pid] = _Child(channel, launch)
        os.close(log)
        return True

    def _become(self, launch: Launch, channel: socket.socket, log: int) -> NoReturn:
        """Be the broker, in the forked child."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in self._children.values():
                other.channel.close()
            for mine in (self._program, self._woken, self._waker):
                mine.close()
            for stream in (1, 2):
                os.dup2(log, stream)
            os.close(log)
            code = run_broker(launch, channel)
        except BaseException:
            traceback.print_exc()  # into the broker's log, as _exit prints nothing
        finally:
            os._exit(code)

    def _reap(self) -> None:
        """Clean up after brokers that have ended, and remove temporary stores."""
        for pid in list(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            child = self._children.pop(pid)
            remove_temporary(child.launch)
            child.channel.close()  # the program waits for this
            # not sooner, because until then the program may still send signals to this pid
            os.waitpid(pid, 0)


def run_broker(launch: Launch, channel: socket.socket) -> int:
    """Be a broker, as `penstock up` is, until the program closes its end. Returns the exit code."""

    def report(line: str, /, **about: Any) -> None:
        log_line(SystemClock().now_ms(), "supervisor", line, **about)

    def look() -> None:
        """Stop, in the usual way, if the program is gone or has closed its end."""
        with suppress(BlockingIOError):
            if not channel.recv(1):
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        config = load_config(None, launch.flags, launch.environment, settled_sizes).config
        supervisor = Supervisor(config, report=report)
        supervisor.open()
    except PenstockError as error:
        channel.send(msgspec.json.encode(failure(error)))
        return error.exit_code
    try:
        channel.setblocking(False)
        if supervisor.wait_ready(look):
            run = supervisor.store.run
            damaged = bool(supervisor.store.recovered.quarantined)
            ready = Ready(os.getpid(), msgspec.structs.asdict(run.endpoints), damaged)
            with suppress(BrokenPipeError):  # if the program is gone, `look` notices it too
                channel.send(msgspec.json.encode(ready))
            supervisor.run(look)
    except PenstockError as error:
        report(str(error))
        supervisor.kill()
        with suppress(OSError):  # the program may be gone
            channel.send(msgspec.json.encode(failure(error)))
        return error.exit_code
    return 0 if supervisor.stop() else 1


def main() -> None:
    """`python -m penstock.embedded.launcher FD`."""
    import_actors(*(row.name for row in ROSTER if row.is_awaited))
    Launcher(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
