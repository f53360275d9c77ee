"""The broker's configuration: every key once, with default and unit, checked before anything runs.

Keys are RocketMQ's MessageStoreConfig in snake_case with the unit last; keys RocketMQ does not
have stand in the last block. Files are TOML. Nothing here starts or opens anything but the file.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.shared.errors import ConfigError
from penstock.shared.layout import (
    CQ_ENTRY_BYTES,
    MAX_QUEUES_PER_TOPIC,
    MAX_SEGMENT_BYTES,
    PAGE_BYTES,
    RECORD_OVERHEAD_BYTES,
)

DEFAULT_PRODUCE_PORT = 20911
DEFAULT_CONSUME_PORT = 20912
# A queue of the table takes 320 bytes of memory once it is in use.
MAX_QUEUES = 1 << 24


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `configs/broker.toml` may say; the comments there explain each key."""

    store_path_root_dir: str = "store"
    mapped_file_size_commit_log_bytes: int = 1 << 30
    mapped_file_size_consume_queue_bytes: int = 300_000 * CQ_ENTRY_BYTES
    max_message_size_bytes: int = 4 << 20

    flush_disk_type: Literal["sync", "async"] = "sync"
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = 5000
    flush_interval_consume_queue_ms: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 5000

    transient_store_pool_enable: bool = True
    transient_store_pool_bytes: int = 32 << 20
    commit_interval_commit_log_ms: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval_ms: int = 200

    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 4

    broker_ip: str = "127.0.0.1"
    bind_host: str = "127.0.0.1"
    produce_port: int = DEFAULT_PRODUCE_PORT
    consume_port: int = DEFAULT_CONSUME_PORT
    max_queues: int = 65_536
    max_pending_bytes: int = 64 << 20
    actor_stopped_timeout_ms: int = 200
    actor_stall_timeout_ms: int = 10_000

    @property
    def store(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "sync"

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is legal and fits a segment with the blank behind it."""
        limit = self.max_message_size_bytes + RECORD_OVERHEAD_BYTES
        return min(limit, self.mapped_file_size_commit_log_bytes - 8)

    @property
    def max_frame_bytes(self) -> int:
        """The largest produce frame: one largest record, or many small ones."""
        return max(1 << 20, self.max_record_bytes)


def load_config(file: Path | None = None, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration from a TOML file, with overrides (flags) over it. Raises ConfigError."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_bytes().decode())
        except OSError as error:
            raise ConfigError(
                "the configuration file can be read", error, "check --config"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is TOML", error, "correct that line") from None
    values.update({key: value for key, value in (overrides or {}).items() if value is not None})
    known = Config.__struct_fields__
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else "see configs/broker.toml for all keys"
            raise ConfigError("a known configuration key", key, hint)
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError("a configuration value of the right type", error) from None
    check_config(config)
    return config


def check_config(config: Config) -> None:
    """Raise ConfigError for values that are out of range or do not go together."""
    segment, pool = config.mapped_file_size_commit_log_bytes, config.transient_store_pool_bytes
    _check(
        PAGE_BYTES <= segment <= MAX_SEGMENT_BYTES and segment % PAGE_BYTES == 0,
        "mapped_file_size_commit_log_bytes is a multiple of 4096 below 2 GiB",
        segment,
    )
    queue_file = config.mapped_file_size_consume_queue_bytes
    _check(
        queue_file >= CQ_ENTRY_BYTES and queue_file % CQ_ENTRY_BYTES == 0,
        "mapped_file_size_consume_queue_bytes is a multiple of 20",
        queue_file,
    )
    _check(
        0 < config.max_message_size_bytes <= 1 << 30,
        "max_message_size_bytes is from 1 to 1 GiB",
        config.max_message_size_bytes,
    )
    _check(
        pool % PAGE_BYTES == 0 and pool >= 4 * config.max_frame_bytes,
        "transient_store_pool_bytes is a multiple of 4096 and at least 4 times the largest frame "
        f"({config.max_frame_bytes} bytes)",
        pool,
    )
    _check(
        1 <= config.default_topic_queue_nums <= MAX_QUEUES_PER_TOPIC,
        f"default_topic_queue_nums is from 1 to {MAX_QUEUES_PER_TOPIC}",
        config.default_topic_queue_nums,
    )
    _check(
        1 <= config.max_queues <= MAX_QUEUES,
        f"max_queues is from 1 to {MAX_QUEUES}",
        config.max_queues,
    )
    for name in ("produce_port", "consume_port"):
        port = getattr(config, name)
        _check(0 <= port <= 65535, f"{name} is from 0 (any free one) to 65535", port)
    for name in Config.__struct_fields__:
        value = getattr(config, name)
        if name.endswith(("_ms", "_pages", "_nums")) or name.startswith("max_"):
            _check(value >= 0, f"{name} is not negative", value)
    _check(_ip_version(config.bind_host) > 0, "bind_host is an IP address", config.bind_host)
    # the store host of a record: producers leave 8 bytes for it
    _check(_ip_version(config.broker_ip) == 4, "broker_ip is an IPv4 address", config.broker_ip)


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(rule, value, "see configs/broker.toml")


def default_store() -> str:
    """Where the commands look when --store is not given: $PENSTOCK_STORE, else ./store."""
    return os.environ.get("PENSTOCK_STORE") or "store"


def _ip_version(text: str) -> int:
    try:
        return ipaddress.ip_address(text).version
    except ValueError:
        return 0
