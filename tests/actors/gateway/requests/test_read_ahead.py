"""The kernel is told for each segment what `setCommitLogReadAheadMode` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.requests.switched_off import set_read_ahead
from penstock.remoting.codes import Request
from penstock.remoting.command import Command
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.reader import LogReader
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run

SIZE = 1 << 20


def flags_of_mapping(file: Path) -> list[str]:
    _, found, rest = Path("/proc/self/smaps").read_text().partition(str(file))
    assert found, "it is not mapped"
    return rest.partition("VmFlags:")[2].partition("\n")[0].split()


def test_mode_1_has_the_logs_segments_read_at_random_and_mode_0_ahead(
    make_config: Callable[..., Config], make_run: Callable[[Config], Run]
) -> None:
    config = make_config(mapped_file_size_commit_log_bytes=SIZE)
    segment = StorePaths(config.store).commit_log / segment_name(0)
    segment.parent.mkdir(parents=True)
    segment.write_bytes(bytes(SIZE))
    run = make_run(config)
    positions = Positions(run.positions)
    log = LogReader(config, run, positions)
    log.segment(0, SIZE).release()
    services = cast(Any, SimpleNamespace(queues=SimpleNamespace(log=log)))
    for mode, is_random in ((1, True), (0, False), (1, True)):
        fields = {"READ_AHEAD_MODE": str(mode)}
        command = Command(Request.SET_COMMITLOG_READ_MODE, 1, fields)
        reply = set_read_ahead(services, Call(cast(Connection, None), command, 0))
        assert reply.code == 0 and str(mode) in reply.remark
        assert ("rr" in flags_of_mapping(segment)) == is_random
    log.close()
    positions.close()
