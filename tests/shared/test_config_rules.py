"""The configuration's rules: every value that is out of range is refused, with its rule."""

from __future__ import annotations

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.config_rules import check_config
from penstock.shared.errors import ConfigError


def _checked(**values: object) -> Config:
    config = msgspec.convert(values, Config)
    check_config(config)
    return config


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("mapped_file_size_commit_log_bytes", [4096, 2**31 - 4096], [0, -4096, 4095, 5000, 2**31]),
        ("mapped_file_size_consume_queue_bytes", [20, 6_000_000], [0, -20, 19, 21]),
        ("max_message_size_bytes", [1, 4 << 20], [0, -1, (1 << 30) + 1]),
        ("transient_store_pool_bytes", [32 << 20], [0, (32 << 20) + 1, 4 << 20]),
        ("default_topic_queue_nums", [1, 1024], [0, -1, 1025]),
        ("max_queues", [1, 65536], [0, -1, 1 << 40]),
        ("produce_port", [0, 65535], [-1, 65536]),
        ("consume_port", [0, 65535], [-1, 65536]),
        ("group_port", [0, 65535], [-1, 65536]),
        ("transaction_port", [0, 65535], [-1, 65536]),
        ("monitor_port", [0, 65535], [-1, 65536]),
        ("monitor_host", ["0.0.0.0", "::1"], ["", "localhost"]),
        ("gateway_port", [0, 65535], [-1, 65536]),
        ("gateway_name_server_port", [0, 65535], [-1, 65536]),
        ("cluster_name", ["DefaultCluster", "a-b_c"], ["", "a b", "ä", "x" * 128]),
        ("sync_flush_timeout_ms", [0, 1], [-1]),
        ("flush_commit_log_least_pages", [0, 9], [-1]),
        ("max_pending_bytes", [1 << 20], [-1]),
        ("bind_host", ["0.0.0.0", "::1"], ["", "localhost", "1.2.3", "1.2.3.256"]),
        ("broker_ip", ["10.1.2.3", "2001:db8::1"], ["", "[::1]", "host"]),
        ("max_hash_slot_num", [1, 5_000_000], [0, -1, 1 << 29]),
        ("max_index_num", [2, 20_000_000], [-1, 0, 1, 107_374_182]),
        ("delete_when", ["04", "4", "00;23"], ["", "24", "4;", "-1", "4,5", "x"]),
        ("file_reserved_time_h", [0, 72], [-1]),
        ("delete_file_batch_max", [1], [0, -1]),
        ("disk_max_used_space_ratio_percent", [10, 85], [9, 86]),
        ("disk_space_warning_level_ratio_percent", [85, 99], [84, 100]),
        ("message_delay_level", ["1s", "1s 2m 3h 4d"], ["", "1", "1s  2s", "1w", "-1s"]),
    ],
)
def test_values_have_ranges(key: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(_checked(**{key: value}), key) == value
    for value in bad:
        with pytest.raises(ConfigError, match=key) as caught:
            _checked(**{key: value})
        assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name_servers", "is_remote"),
    [
        ("127.0.0.1:9876", False),
        ("localhost:9876;[::1]:9876;127.0.0.2:1", False),
        ("10.0.0.5:9876", True),
        ("127.0.0.1:9876;10.0.0.5:9876", True),
        ("names.example:9876", True),
    ],
)
def test_clients_of_other_machines_are_not_sent_to_their_own(
    name_servers: str, is_remote: bool
) -> None:
    """A name server tells them `broker_ip`, and by loopback each of them finds itself."""
    for address in ("127.0.0.1", "::1"):
        values = {"namesrv_addr": name_servers, "broker_ip": address}
        if is_remote:
            with pytest.raises(ConfigError, match="namesrv_addr.*broker_ip"):
                _checked(**values)
        else:
            _checked(**values)
    _checked(namesrv_addr=name_servers, broker_ip="10.0.0.9")


def test_the_pool_holds_four_of_the_largest_frames() -> None:
    for size, enough in ((4 << 20, 16 << 20), (64 << 20, 256 << 20), (1, 4 << 20)):
        config = Config(max_message_size_bytes=size)
        least = 4 * config.max_frame_bytes
        assert least >= enough
        with pytest.raises(ConfigError, match="transient_store_pool_bytes"):
            _checked(max_message_size_bytes=size, transient_store_pool_bytes=4096)
        pool = -(-least // 4096) * 4096
        _checked(max_message_size_bytes=size, transient_store_pool_bytes=pool)


def test_the_largest_record_is_legal_and_fits_a_segment_with_the_blank_behind_it() -> None:
    assert Config(max_message_size_bytes=1000).max_record_bytes == 1000 + 65536
    small = Config(mapped_file_size_commit_log_bytes=4096)
    assert small.max_record_bytes == 4088
    assert small.max_frame_bytes == 1 << 20
