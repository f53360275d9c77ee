"""One Spark session for all tests here, and stores built record by record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.queue_entry import ENTRY, tags_code
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import StorePaths, segment_name

BORN_MS, STORED_MS = 1_700_000_000_123, 1_700_000_000_456


class StoreBuilder:
    """Appends records as a broker does: full-length files, blanks at the end of segments."""

    def __init__(self, root: Path, segment_bytes: int = 1 << 16, queue_file_bytes: int = 2000):
        self.paths = StorePaths(root)
        self.segment_bytes = segment_bytes
        self.queue_file_bytes = queue_file_bytes
        self.position = 0
        self.next_offset: dict[tuple[str, int], int] = defaultdict(int)
        self.paths.commit_log.mkdir(parents=True)
        self.paths.consume_queue.mkdir()

    def put(
        self,
        topic: str = "flights",
        queue_id: int = 0,
        body: bytes = b"body",
        properties: dict[str, str] | bytes = b"",
        code: int | None = None,
        **fields: Any,
    ) -> Record:
        """Append one message and its entry, whose tags code is that of its tags by default."""
        packed = properties if isinstance(properties, bytes) else encode_properties(properties)
        queue_offset = self.next_offset[topic, queue_id]
        defaults: dict[str, Any] = {
            "born_timestamp_ms": BORN_MS + queue_offset,
            "store_timestamp_ms": STORED_MS + queue_offset,
        }
        record = Record(
            topic=topic,
            body=body,
            properties=packed,
            queue_id=queue_id,
            queue_offset=queue_offset,
            **(defaults | fields),
        )
        size = len(encode_record(record))
        left = self.segment_bytes - self.position % self.segment_bytes
        if size + BLANK.size > left:
            self.write_log(self.position, BLANK.pack(left, MAGIC_BLANK))
            self.position += left
        record = replace(record, physical_offset=self.position)
        self.write_log(self.position, encode_record(record))
        if code is None:
            code = tags_code(decode_properties(packed).get("TAGS", ""))
        self.put_entry(topic, queue_id, self.position, size, code)
        self.position += size
        return record

    def put_entry(self, topic: str, queue_id: int, position: int, size: int, code: int = 0) -> None:
        at = self.next_offset[topic, queue_id] * ENTRY.size
        self.next_offset[topic, queue_id] += 1
        folder = self.paths.queue(topic, queue_id)
        _write(folder, at, ENTRY.pack(position, size, code), self.queue_file_bytes)

    def write_log(self, position: int, raw: bytes) -> None:
        _write(self.paths.commit_log, position, raw, self.segment_bytes)

    @property
    def root(self) -> str:
        return str(self.paths.root)


def _write(folder: Path, position: int, raw: bytes, file_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    base = position - position % file_bytes
    path = folder / segment_name(base)
    if not path.exists():
        path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(file_bytes)
        file.seek(position - base)
        file.write(raw)


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "store")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from penstock.spark.session import local_session

    # it serves clients of Spark Connect, too: a server of their own is another virtual machine
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        # a catalog of tables makes a directory, where the tests are run by default
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = local_session(app_name="penstock tests", settings=settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_server(spark: Any) -> str:
    """Where clients of Spark Connect find that session's server."""
    place = spark._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(place, "SparkConnectService$"), "MODULE$")  # Scala's object
    return f"sc://127.0.0.1:{service.localPort()}"
