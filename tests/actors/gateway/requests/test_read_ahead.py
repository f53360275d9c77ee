"""What `setCommitLogReadAheadMode` asks for is said to the kernel of the segments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.requests.switched_off import set_read_ahead
from penstock.remoting.codes import Request
from penstock.remoting.command import Command
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.layout import segment_name

SIZE = 4096


def flags_of_mapping(file: Path) -> list[str]:
    _, found, rest = Path("/proc/self/smaps").read_text().partition(str(file))
    assert found, "it is not mapped"
    return rest.partition("VmFlags:")[2].partition("\n")[0].split()


def test_mode_1_has_the_logs_segments_read_at_random_and_mode_0_ahead(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(bytes(SIZE))
    log = MappedFileQueue(tmp_path, SIZE)
    log.segment(0)
    services = cast(Any, SimpleNamespace(queues=SimpleNamespace(log=log)))
    for mode, is_random in ((1, True), (0, False), (1, True)):
        fields = {"READ_AHEAD_MODE": str(mode)}
        command = Command(Request.SET_COMMITLOG_READ_MODE, 1, fields)
        reply = set_read_ahead(services, Call(cast(Connection, None), command, 0))
        assert reply.code == 0 and str(mode) in reply.remark
        assert ("rr" in flags_of_mapping(log.path(0))) == is_random
    log.close()
