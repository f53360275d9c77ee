"""Commands of tests as forks of one process that has imported what `penstock` needs.

Most of a short command's time is the start of Python and its imports. After `Forks.install`,
commands `python -m MODULE` of MODULES are forked by a process which has done that once:
`python forked_starts.py FD`. What it forks is what `subprocess` would have started. It is a child
of the process of tests (CLONE_PARENT), which waits for it and signals it as any other; it has the
files, directory, environment and session that were asked for, and runs and ends as a program.

It differs in two things: modules of other commands are there, and at its very end the interpreter
is not taken apart. So a test about a start gets a true one: tests/conftest.py says which folders
have forks, `_is_plain` which commands.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

PENSTOCK = "penstock.cli.main"
# Commands of the first, and the programs that chaos kills and starts again.
MODULES = (
    PENSTOCK,
    "penstock.chaos.clients.copier",
    "penstock.chaos.clients.seller",
    "penstock.chaos.clients.worker",
)
# Its commands that start Spark, compilers or other brokers, or measure what a start takes.
NOT_FORKED = {"bench", "chaos", "demo", "spark"}
# What is looked at while Python starts, or while modules are imported.
AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "OPENBLAS_", "COVERAGE_")
AT_IMPORT = ("PENSTOCK_PURE",)
# A fork arms its points by these.
FAULTS = ("PENSTOCK_FAULTS", "PENSTOCK_FAULTS_FIRED")
# What nearly all of them import when they are called: a broker, and who asks it.
LATER = (
    "difflib",
    "encodings.ascii",
    "penstock.client.reading.consumer",
    "penstock.client.sending.producer",
    "penstock.shared.config_sources",
    "penstock.supervisor",
    "tomllib",
)
REQUEST_BYTES = 1 << 17
ROOM = "0" * (8 << 10)
_PR_GET_TID_ADDRESS = 40
_SYS_CLONE3 = 435
_CLONE_PARENT, _CHILD_SETTID, _CHILD_CLEARTID = 0x8000, 0x01000000, 0x00200000


# --- in the process of tests ---


class Forks:
    """Has commands forked while `is_wanted`; the process that forks begins with the first."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._server: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._state: list[object] = []
        self._start: Any = None

    def install(self) -> None:
        self._start = vars(subprocess)["_fork_exec"]
        vars(subprocess)["_fork_exec"] = self._fork_exec
        # else it has another way to start a process
        vars(subprocess)["_USE_POSIX_SPAWN"] = False

    def close(self) -> None:
        if self._server is not None and self._process is not None:
            self._server.close()
            self._process.wait()

    def _fork_exec(self, *given: Any) -> int:
        """In the place of `_posixsubprocess.fork_exec`: start a process; its pid."""
        words = [os.fsdecode(word) for word in given[0]]
        # a fork of the process of tests has its own children
        if self.is_wanted and os.getpid() == self._owner and _is_plain(words, given):
            with self._lock, suppress(OSError):  # one of the streams is closed
                if (pid := self._fork(words, given)) > 0:
                    return pid
        return int(self._start(*given))

    def _fork(self, words: list[str], given: tuple[Any, ...]) -> int:
        if self._server is None:
            self.begin()
        assert self._server is not None
        environment = os.environ if given[5] is None else _environment(given[5])
        if _state(environment) != self._state or not _can_be_armed(environment):
            return 0
        request = {
            "module": words[2],
            "words": words[3:],
            "directory": os.path.join(os.getcwd(), os.fsdecode(given[4] or "")),
            "environment": dict(environment),
            "session": given[15],
            "group": given[16],
        }
        streams = [
            each if each >= 0 else at for at, each in enumerate((given[6], given[9], given[11]))
        ]
        socket.send_fds(self._server, [json.dumps(request).encode()], streams)
        return int.from_bytes(self._server.recv(8), "little", signed=True)

    def begin(self) -> None:
        """Start the process that forks, which the first command would do."""
        self._server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._state = _state(os.environ)
            command = [sys.executable, __file__, str(theirs.fileno()), ROOM]
            environment = {**os.environ, "ROOM": ROOM}
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdout=subprocess.DEVNULL
            )


def _is_plain(words: list[str], given: tuple[Any, ...]) -> bool:
    """Whether a command is started as most are."""
    closes, kept, directory = given[2], given[3], given[4]
    privileges, prepare = given[17:21], given[21]
    return (
        words[:2] == [sys.executable, "-m"]
        and not {*words[2:3]}.isdisjoint(MODULES)
        and NOT_FORKED.isdisjoint(words[3:4])
        # what subprocess keeps by itself is the pipe that tells of errors
        and closes
        and len(kept) == 1
        and privileges == (None, None, None, -1)
        and prepare is None
        and (directory is None or os.path.isdir(directory))
    )


def _environment(listed: list[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(each).partition("=") for each in listed)
    return {name: value for name, _, value in pairs}


def _can_be_armed(environment: Any) -> bool:
    """What is wrong with its faults is for a true start to say."""
    from penstock.shared.errors import ConfigError
    from penstock.shared.faults import parse_faults

    try:
        parse_faults(environment.get(FAULTS[0], ""))
    except ConfigError:
        return False
    return True


def _state(environment: Any) -> list[object]:
    """What a started process has that one forked earlier has not, where it changes."""
    names = (each for each in dir(resource) if each.startswith("RLIMIT_"))
    limits = [resource.getrlimit(getattr(resource, name)) for name in names]
    told = ("Umask:", "SigBlk:", "SigIgn:", "Cpus_allowed:", "CapEff:", "NoNewPrivs:")
    status = Path("/proc/thread-self/status").read_text().splitlines()
    lines = [line for line in status if line.startswith(told)]
    early = {k: v for k, v in environment.items() if k.startswith(AT_START + AT_IMPORT)}
    return [limits, lines, early, os.getpriority(os.PRIO_PROCESS, 0)]


# --- in the process that forks ---


def _import_all() -> None:
    """Whatever commands and brokers import, sooner or later; nothing of it may start a thread."""
    before = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in FAULTS:
        os.environ.pop(name, None)
    from penstock.cli.main import COMMANDS
    from penstock.shared.memory.roster import ROSTER
    from penstock.shared.process.actor import import_actors

    for name, (place, _) in COMMANDS.items():
        if name not in NOT_FORKED:
            importlib.import_module(place.partition(":")[0])
    import_actors(*(row.name for row in ROSTER))
    for name in (*LATER, *MODULES):
        importlib.import_module(name)
    for name in MODULES:
        del sys.modules[name]  # it is run, as what was not imported yet
    os.environ.clear()
    os.environ.update(before)


def serve(program: socket.socket) -> str:
    """Fork what is asked for, until nobody can ask; returns in each fork the module to be run."""
    libc = ctypes.PyDLL(None, use_errno=True)
    thread_id = ctypes.c_uint64()
    libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id))
    flags = _CLONE_PARENT | _CHILD_SETTID | _CHILD_CLEARTID
    clone = (ctypes.c_uint64 * 8)(flags, 0, thread_id.value)
    while True:
        asked, streams, _, _ = socket.recv_fds(program, REQUEST_BYTES, 3)
        if not asked:
            os._exit(0)
        # What os.fork does, whose children are this process's. The C library keeps the thread's
        # number where the kernel is told to put the new one.
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = libc.syscall(_SYS_CLONE3, clone, ctypes.sizeof(clone)) if thread_id.value else -1
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            program.close()
            request = json.loads(asked)
            _become(request, streams)
            return str(request["module"])
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for each in streams:
            os.close(each)
        program.send(pid.to_bytes(8, "little", signed=True))


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be as a process that has just been started."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(3, 100)
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _arm()
    words = [sys.executable, "-m", request["module"], *request["words"]]
    _show(words, request["environment"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _opened(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[0] = request["directory"]
    sys.argv[1:] = request["words"]


def _arm() -> None:
    """Have each point do what the environment says, as a start has when it imports them."""
    from penstock.shared import faults

    if (armed := faults._from_environment()) is None:
        return
    unarmed, faults._faults = faults.crash_point, armed
    for module in [each for name, each in sys.modules.items() if name.startswith("penstock.")]:
        for name, value in [*vars(module).items()]:
            if value is unarmed:
                setattr(module, name, armed.hit)


def _leave(ended: dict[str, int]) -> None:
    """When a fork has done all that programs do at their end: leave, as the interpreter would take
    apart what is shared, and copy it for that."""
    if "code" not in ended:
        return  # an exception, which the interpreter prints
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        return  # the interpreter says so, and has a code for it
    os._exit(ended["code"])


def _show(words: list[str], environment: dict[str, str]) -> None:
    """Have /proc show this command line and environment, where it showed those of the process that
    forks, which had room for more: zeros follow. The environment itself has been moved."""
    # after the name in brackets, which may hold anything
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    starts_ends = [int(field) for field in fields[45:49]]
    pairs = [f"{name}={value}" for name, value in environment.items()]
    for at, texts in ((0, words), (2, pairs)):
        start, end = starts_ends[at : at + 2]
        raw = b"".join(os.fsencode(text) + b"\0" for text in texts)
        ctypes.memmove(start, raw[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _opened(number: int, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream as Python opens it when it starts: only a terminal has it by lines."""
    raw: Any = io.FileIO(number, "w" if number else "r", closefd=False)
    raw.name = before.name
    is_unbuffered = number > 0 and not hasattr(before.buffer, "raw")
    if not is_unbuffered:
        raw = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
    stream: Any = io.TextIOWrapper(
        raw,
        before.encoding,
        before.errors,
        newline="\n",
        line_buffering=not is_unbuffered and (number == 2 or raw.isatty()),
        write_through=before.write_through,
    )
    stream.mode = before.mode
    return stream


if __name__ == "__main__":
    ended: dict[str, int] = {}
    atexit.register(_leave, ended)  # the first, so that it is the last to be called
    _import_all()
    gc.freeze()  # what is here now is shared with the forks, so leave its pages alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests, which end this
    module = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            ended["code"] = left.code or 0
        raise
