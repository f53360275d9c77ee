"""What a configuration's values must be, and which go together. Types are checked before this.

One table with a row for each rule. The text of a rule completes the sentence "it must be ...".
A broker checks all of it before it touches the store: a value that only fails an hour later, when
the first segment is full, would fail in front of producers.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable

from penstock.shared.config import Config
from penstock.shared.errors import ConfigError
from penstock.shared.layout import CQ_ENTRY_BYTES, MAX_SEGMENT_BYTES, PAGE_BYTES
from penstock.shared.names import MAX_QUEUES_PER_TOPIC

# A queue in use takes 320 bytes of shared memory, so the table can grow to 5 GiB. It is mapped
# whole, so its size must be limited.
MAX_QUEUES = 1 << 24
# Keys with these endings count something: 0 is allowed and means "none" or "at once".
_NOT_NEGATIVE = ("_ms", "_pages", "_nums", "_num", "_h", "_mapped_file")
_NAME = re.compile(r"[\w%|-]{1,127}", re.ASCII)
_DELAYS = re.compile(r"\d{1,9}[smhd]( \d{1,9}[smhd])*")

# A rule gets the whole configuration, because it may compare keys with each other.
Rule = tuple[str, Callable[[Config], bool], str]

# the key whose value the error shows, what must hold, and how to say it
RULES: tuple[Rule, ...] = (
    (
        # whole pages, because segments are mapped, by RocketMQ too; below 2 GiB, because RocketMQ's
        # positions inside a segment are Java ints
        "mapped_file_size_commit_log_bytes",
        lambda c: (
            PAGE_BYTES <= c.mapped_file_size_commit_log_bytes <= MAX_SEGMENT_BYTES
            and c.mapped_file_size_commit_log_bytes % PAGE_BYTES == 0
        ),
        "a multiple of 4096 below 2 GiB",
    ),
    (
        # whole entries: entry k is byte 20 * k of its queue, and none may lie in two files
        "mapped_file_size_consume_queue_bytes",
        lambda c: (
            c.mapped_file_size_consume_queue_bytes >= CQ_ENTRY_BYTES
            and c.mapped_file_size_consume_queue_bytes % CQ_ENTRY_BYTES == 0
        ),
        "a multiple of 20",
    ),
    (
        "max_message_size_bytes",
        lambda c: 0 < c.max_message_size_bytes <= 1 << 30,
        "from 1 to 1 GiB",
    ),
    (
        # a frame may need a blank and start again in the next segment, and the committer must be
        # able to free a part of the pool while the writer fills another
        "transient_store_pool_bytes",
        lambda c: (
            c.transient_store_pool_bytes % PAGE_BYTES == 0
            and c.transient_store_pool_bytes >= 4 * c.max_frame_bytes
        ),
        "a multiple of 4096 and at least 4 times the largest frame (max_frame_bytes)",
    ),
    (
        "default_topic_queue_nums",
        lambda c: 1 <= c.default_topic_queue_nums <= MAX_QUEUES_PER_TOPIC,
        f"from 1 to {MAX_QUEUES_PER_TOPIC}",
    ),
    ("max_queues", lambda c: 1 <= c.max_queues <= MAX_QUEUES, f"from 1 to {MAX_QUEUES}"),
    ("transaction_check_interval_ms", lambda c: c.transaction_check_interval_ms >= 1, "at least 1"),
    ("transaction_check_max", lambda c: 0 <= c.transaction_check_max <= 127, "from 0 to 127"),
    ("max_connections", lambda c: c.max_connections >= 1, "at least 1"),
    ("max_hash_slot_num", lambda c: 1 <= c.max_hash_slot_num <= 1 << 28, "from 1 to 2^28"),
    (
        "max_index_num",
        # Item 0 is never used, so a file of one item could hold no key. And Java maps the file with
        # 32-bit positions: header, slots and items together stay below 2 GiB.
        lambda c: (
            c.max_index_num >= 2 and 40 + 4 * c.max_hash_slot_num + 20 * c.max_index_num < 1 << 31
        ),
        "at least 2, and small enough for an index file below 2 GiB (40 + 4 * max_hash_slot_num + "
        "20 * max_index_num bytes)",
    ),
    (
        # RocketMQ's form. isdigit accepts the digits of all scripts, so ASCII is required as well.
        # It is false for an empty part, so "04;" is refused, too.
        "delete_when",
        lambda c: all(
            hour.isascii() and hour.isdigit() and int(hour) < 24
            for hour in c.delete_when.split(";")
        ),
        'hours from 00 to 23, as in "04" or "04;16"',
    ),
    (
        # the three ratios must be in order: first expired files go, then messages are refused
        "disk_max_used_space_ratio_percent",
        lambda c: (
            10 <= c.disk_max_used_space_ratio_percent <= c.disk_space_clean_forcibly_ratio_percent
        ),
        "at least 10 and at most disk_space_clean_forcibly_ratio_percent",
    ),
    (
        "disk_space_warning_level_ratio_percent",
        lambda c: (
            c.disk_space_clean_forcibly_ratio_percent
            <= c.disk_space_warning_level_ratio_percent
            <= 99
        ),
        "at least disk_space_clean_forcibly_ratio_percent and at most 99",
    ),
    ("max_recycled_segments", lambda c: c.max_recycled_segments >= 0, "at least 0"),
    ("delete_file_batch_max", lambda c: c.delete_file_batch_max >= 1, "at least 1"),
    (
        "message_delay_level",
        lambda c: _DELAYS.fullmatch(c.message_delay_level) is not None,
        'times with s, m, h or d, as in "1s 5s 2h"',
    ),
    ("produce_port", lambda c: 0 <= c.produce_port <= 65535, "from 0 (any free one) to 65535"),
    ("consume_port", lambda c: 0 <= c.consume_port <= 65535, "from 0 (any free one) to 65535"),
    ("group_port", lambda c: 0 <= c.group_port <= 65535, "from 0 (any free one) to 65535"),
    (
        "transaction_port",
        lambda c: 0 <= c.transaction_port <= 65535,
        "from 0 (any free one) to 65535",
    ),
    ("monitor_port", lambda c: 0 <= c.monitor_port <= 65535, "from 0 (any free one) to 65535"),
    ("monitor_host", lambda c: _ip_version(c.monitor_host) > 0, "an IP address"),
    (
        "gateway_name_server_port",
        lambda c: 0 <= c.gateway_name_server_port <= 65535,
        "from 0 (any free one) to 65535",
    ),
    (
        "tls_server_cert_path",
        lambda c: (
            bool(c.tls_server_cert_path) == bool(c.tls_server_key_path)
            and (bool(c.tls_server_cert_path) or c.tls_server_mode != "enforcing")
        ),
        "named together with tls_server_key_path, and where tls_server_mode is enforcing",
    ),
    (
        "tls_server_need_client_auth",
        lambda c: c.tls_server_need_client_auth == "none" or bool(c.tls_server_trust_cert_path),
        "none, unless tls_server_trust_cert_path says what clients are checked by",
    ),
    ("gateway_port", lambda c: 0 <= c.gateway_port <= 65535, "from 0 (any free one) to 65535"),
    (
        "cluster_name",
        lambda c: _NAME.fullmatch(c.cluster_name) is not None,
        "1 to 127 letters, digits and % | - _",
    ),
    (
        "namesrv_addr",
        lambda c: _are_addresses(c) and (c.gateway_enable or not c.namesrv_addr),
        "HOST:PORT, several with ; between them, and gateway_enable with it",
    ),
    (
        "namesrv_addr",
        lambda c: not _is_loopback(c.broker_ip) or all(_is_loopback(h) for h, _ in c.name_servers),
        "all on this machine, unless broker_ip is an address by which clients reach this broker",
    ),
    ("bind_host", lambda c: _ip_version(c.bind_host) > 0, "an IP address"),
    ("broker_ip", lambda c: _ip_version(c.broker_ip) > 0, "an IP address"),
)


def check_config(config: Config) -> None:
    """Raise ConfigError for values that are out of range or do not go together.

    Reports the first one. It checks only values, and no file or socket: whether a port is free or a
    disk has room is not a rule of the configuration.
    """
    # the table first: its texts are more exact than the general one for numbers
    for key, holds, said in RULES:
        if not holds(config):
            raise _error(key, said, config)
    for key in Config.__struct_fields__:
        counts = key.endswith(_NOT_NEGATIVE) or key.startswith("max_")
        if counts and getattr(config, key) < 0:
            raise _error(key, "0 or more", config)


def _error(key: str, said: str, config: Config) -> ConfigError:
    value = repr(getattr(config, key))
    return ConfigError(
        f"{key} cannot have this value", value, f"it must be {said}; {default_of(key)}"
    )


def default_of(key: str) -> str:
    """A key's default, in the form of a hint: it is copied into a shell, where a delete_when of
    "04;16" needs its quotes.
    """
    default = getattr(Config(), key)
    word = str(default).lower() if isinstance(default, bool) else str(default)
    return f"its default: --set {key}={shlex.quote(word)}"


def _are_addresses(config: Config) -> bool:
    try:
        return len(config.name_servers) >= 0
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # it is a name, and names are not resolved


def _ip_version(text: str) -> int:
    """4 or 6; 0 for anything else. Names are not resolved: `broker_ip` goes into records, which
    have room only for an address.
    """
    try:
        return ipaddress.ip_address(text).version
    except ValueError:
        return 0
