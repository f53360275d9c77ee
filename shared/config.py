"""The broker's configuration: every key once, with its default and its unit.

Keys are RocketMQ's MessageStoreConfig in snake_case with the unit last, so that an operator who
knows one knows the other. The last block holds keys that RocketMQ does not have.

A configuration is a value: frozen, and complete before the broker opens anything. config_sources
says where values come from, and config_rules what they must be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.shared.layout import CQ_ENTRY_BYTES, RECORD_OVERHEAD_BYTES

DEFAULT_PRODUCE_PORT = 20911
DEFAULT_CONSUME_PORT = 20912
DEFAULT_GROUP_PORT = 20913
DEFAULT_TRANSACTION_PORT = 20914
DEFAULT_MONITOR_PORT = 20915
# where RocketMQ's clients look for a name server and a broker; older ones use a second broker port
DEFAULT_NAME_SERVER_PORT = 9876
DEFAULT_GATEWAY_PORT = 10911
VIP_PORTS_BELOW = 2


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `configs/broker.toml` may set; the comments there explain each key."""

    # --- the log and its records ---
    store_path_root_dir: str = "store"
    mapped_file_size_commit_log_bytes: int = 1 << 30
    mapped_file_size_consume_queue_bytes: int = 300_000 * CQ_ENTRY_BYTES
    max_message_size_bytes: int = 4 << 20
    # RocketMQ 5 has the next two off as well. A store keeps working when they change: the last
    # property of each record says whether it has a checksum of its own.
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    check_crc_on_recover: bool = True

    # --- queues, index, filters ---
    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    enable_property_filter: bool = True
    max_filter_message_size_bytes: int = 16_000
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    # --- from memory to the disk ---
    # RocketMQ's default is async. Here an acknowledgement means that the message is on disk: a user
    # who has read no manual must not lose anything to a power failure.
    flush_disk_type: Literal["sync", "async"] = "sync"
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = 5000
    flush_interval_consume_queue_ms: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 5000

    # On, unlike in RocketMQ: the writer stores into memory that never waits for the disk, and only
    # the committer waits for a slow page cache.
    transient_store_pool_enable: bool = True
    transient_store_pool_bytes: int = 32 << 20
    commit_interval_commit_log_ms: int = 200
    # RocketMQ has 4. The committer copies in blocks of this size, and the page cache keeps these.
    commit_commit_log_least_pages: int = 16
    commit_commit_log_thorough_interval_ms: int = 1
    fast_fail_if_no_buffer_in_store_pool: bool = False

    os_page_cache_busy_timeout_ms: int = 1000
    wait_time_in_send_queue_ms: int = 200

    warm_mapped_file_enable: bool = False
    flush_least_pages_when_warm_mapped_file: int = 4096

    # Expired segments that are kept, to be filled with zeros and reused. Not in RocketMQ.
    max_recycled_segments: int = 4

    # --- what is deleted, and when ---
    file_reserved_time_h: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio_percent: int = 75
    disk_space_warning_level_ratio_percent: int = 90
    # RocketMQ's default is on, and deletes the oldest segments of a full disk even if nobody has
    # read them. Here a full disk first refuses new messages.
    clean_file_forcibly_enable: bool = False
    disk_space_clean_forcibly_ratio_percent: int = 85
    expire_archived_only: bool = False
    clean_resource_interval_ms: int = 10_000
    delete_file_batch_max: int = 10
    delete_commit_log_files_interval_ms: int = 100
    delete_consume_queue_files_interval_ms: int = 100
    destroy_mapped_file_interval_forcibly_ms: int = 120_000
    redelete_hanged_file_interval_ms: int = 120_000

    # --- topics ---
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8

    # --- consumer groups ---
    auto_create_subscription_group: bool = True
    flush_consumer_offset_interval_ms: int = 5000

    # --- transactions ---
    transaction_check_interval_ms: int = 30_000
    transaction_time_out_ms: int = 6000
    transaction_check_max: int = 15

    # --- what RocketMQ does not have, or has elsewhere ---
    # Loopback, because no endpoint of this broker authenticates its clients.
    broker_name: str = "broker-a"
    broker_ip: str = "127.0.0.1"
    bind_host: str = "127.0.0.1"
    produce_port: int = DEFAULT_PRODUCE_PORT
    consume_port: int = DEFAULT_CONSUME_PORT
    group_port: int = DEFAULT_GROUP_PORT
    transaction_port: int = DEFAULT_TRANSACTION_PORT
    monitor_enable: bool = True
    monitor_host: str = "127.0.0.1"
    monitor_port: int = DEFAULT_MONITOR_PORT
    gateway_enable: bool = True
    gateway_name_server_port: int = DEFAULT_NAME_SERVER_PORT
    gateway_port: int = DEFAULT_GATEWAY_PORT
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "permissive"
    tls_server_cert_path: str = ""
    tls_server_key_path: str = ""
    tls_server_need_client_auth: Literal["none", "optional", "require"] = "none"
    tls_server_trust_cert_path: str = ""
    cluster_name: str = "DefaultCluster"
    namesrv_addr: str = ""
    order_message_enable: bool = False
    max_queues: int = 65_536
    max_pending_bytes: int = 64 << 20
    max_connections: int = 10_000
    max_producer_rings: int = 64
    actor_stopped_timeout_ms: int = 200
    actor_stall_timeout_ms: int = 10_000

    @property
    def ports(self) -> dict[str, int]:
        """The port of each endpoint, by its name in `Endpoints`."""
        return {
            "produce": self.produce_port,
            "consume": self.consume_port,
            "group": self.group_port,
            "transaction": self.transaction_port,
        }

    @property
    def gateway_ports(self) -> dict[str, int]:
        """The port of each endpoint of the gateway, as above; none where it is off.

        Clients before 4.0 send to the third. It is computed from the broker's port, so it is
        missing if that is 0, any free one.
        """
        if not self.gateway_enable:
            return {}
        ports = {"name_server": self.gateway_name_server_port, "remoting": self.gateway_port}
        if self.gateway_port > VIP_PORTS_BELOW:
            ports["remoting_vip"] = self.gateway_port - VIP_PORTS_BELOW
        return ports

    @property
    def name_servers(self) -> list[tuple[str, int]]:
        """Host and port of each name server with which the broker registers. Raises ValueError."""
        return [_split_address(each) for each in self.namesrv_addr.split(";") if each.strip()]

    @property
    def store(self) -> Path:
        return Path(self.store_path_root_dir).expanduser()

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "sync"

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is legal and fits into a segment.

        A segment ends with a blank whose header has 8 bytes, even after a record that fills it.
        """
        limit = self.max_message_size_bytes + RECORD_OVERHEAD_BYTES
        return min(limit, self.mapped_file_size_commit_log_bytes - 8)

    @property
    def max_frame_bytes(self) -> int:
        """The largest produce frame: one largest record, or many small ones."""
        return max(1 << 20, self.max_record_bytes)


def _split_address(text: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT, with an IPv6 host in brackets. Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isascii() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
