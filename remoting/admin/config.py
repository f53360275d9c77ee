"""The broker's configuration in RocketMQ's words: its keys as Java writes them, one for a line.

RocketMQ's names have no units, and some of its values differ from Penstock's.
"""

from __future__ import annotations

from msgspec import structs

from penstock.remoting.naming.routes import MASTER_ID
from penstock.shared.config import Config

_UNITS = ("_bytes", "_ms", "_h", "_percent")
_VALUES = {"flush_disk_type": {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}}
# Keys whose RocketMQ names cannot be derived from Penstock's.
_NAMES = {
    "bind_host": "bindAddress",
    "broker_ip": "brokerIP1",
    "cluster_name": "brokerClusterName",
    "gateway_port": "listenPort",
    "max_message_size_bytes": "maxMessageSize",
    "mapped_file_size_commit_log_bytes": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue_bytes": "mappedFileSizeConsumeQueue",
}


def in_rocketmqs_words(config: Config, port: int) -> str:
    """All keys and values, as a file of properties. `port` is where clients find the broker."""
    found = {"brokerId": str(MASTER_ID), "brokerRole": "ASYNC_MASTER", "brokerPermission": "6"}
    for key, value in structs.asdict(config).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[_NAMES.get(key) or _camel(key)] = _VALUES.get(key, {}).get(text, text)
    root = config.store.absolute()
    found |= {
        "listenPort": str(port),
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
    }
    return "".join(f"{key}={value}\n" for key, value in sorted(found.items()))


def _camel(key: str) -> str:
    for unit in _UNITS:
        key = key.removesuffix(unit)
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)
