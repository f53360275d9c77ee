"""The configuration: what is wrong with it is named, with its rule, before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from penstock.shared.config import Config, check_config, default_store, load_config
from penstock.shared.errors import ConfigError

REPOSITORY = Path(__file__).parent.parent.parent
DOCUMENTED = REPOSITORY / "configs" / "broker.toml"


def test_without_a_file_every_key_has_its_default_and_the_defaults_hold() -> None:
    assert load_config() == Config()
    check_config(Config())


def test_a_file_sets_keys_and_flags_go_over_it(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('store_path_root_dir = "ü"\nproduce_port = 1\nconsume_port = 2\n')
    config = load_config(file, {"produce_port": 3, "consume_port": None})
    assert config == Config(store_path_root_dir="ü", produce_port=3, consume_port=2)


def test_the_documented_file_has_every_key_with_its_default() -> None:
    written = tomllib.loads(DOCUMENTED.read_text("utf-8"))
    defaults = {name: getattr(Config(), name) for name in Config.__struct_fields__}
    assert written == defaults
    assert load_config(DOCUMENTED) == Config()


@pytest.mark.parametrize("file", sorted(DOCUMENTED.parent.glob("*.toml")), ids=lambda p: p.name)
def test_every_file_that_comes_with_it_can_be_used(file: Path) -> None:
    check_config(load_config(file))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("flush_disc_type", "flush_disk_type"),
        ("max_message_size", "max_message_size_bytes"),
        ("transientStorePoolEnable", "transient_store_pool_enable"),
        ("produce-port", "produce_port"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(key: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key: 1})
    assert caught.value.value == key
    assert caught.value.hint == f"did you mean {near}?"
    assert caught.value.exit_code == 2


def test_an_unknown_key_that_is_near_nothing_points_to_the_list() -> None:
    with pytest.raises(ConfigError, match=r"see configs/broker\.toml"):
        load_config(None, {"zzz": 1})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"produce_port = = 1", "line 1"),
        (b"\xff\xfe", "utf-8"),
        (b"produce_port = 'x'", "produce_port"),
        (b"produce_port = true", "produce_port"),
        (b"produce_port = 1.5", "produce_port"),
        (b"flush_disk_type = 'never'", "flush_disk_type"),
        (b"[produce_port]", "produce_port"),
        (b"store_path_root_dir = 5", "store_path_root_dir"),
    ],
)
def test_a_file_that_is_wrong_is_a_config_error_that_says_where(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_config(file)


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    for file in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="can be read"):
            load_config(file)


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
        ("sync_flush_timeout_ms", [0, 1], [-1]),
        ("flush_commit_log_least_pages", [0, 9], [-1]),
        ("max_pending_bytes", [1 << 20], [-1]),
        ("bind_host", ["0.0.0.0", "::1"], ["", "localhost", "1.2.3", "1.2.3.256"]),
        ("broker_ip", ["10.1.2.3"], ["", "::1", "host"]),
    ],
)
def test_values_have_ranges(key: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(load_config(None, {key: value}), key) == value
    for value in bad:
        with pytest.raises(ConfigError, match=key) as caught:
            load_config(None, {key: value})
        assert str(value) in str(caught.value)


def test_the_pool_holds_four_of_the_largest_frames() -> None:
    for size, enough in ((4 << 20, 16 << 20), (64 << 20, 256 << 20), (1, 4 << 20)):
        config = Config(max_message_size_bytes=size)
        least = 4 * config.max_frame_bytes
        assert least >= enough
        with pytest.raises(ConfigError, match="transient_store_pool_bytes"):
            load_config(None, {"max_message_size_bytes": size, "transient_store_pool_bytes": 4096})
        pool = -(-least // 4096) * 4096
        load_config(None, {"max_message_size_bytes": size, "transient_store_pool_bytes": pool})


def test_the_largest_record_is_legal_and_fits_a_segment_with_the_blank_behind_it() -> None:
    assert Config(max_message_size_bytes=1000).max_record_bytes == 1000 + 65536
    small = Config(mapped_file_size_commit_log_bytes=4096)
    assert small.max_record_bytes == 4088
    assert small.max_frame_bytes == 1 << 20


def test_a_home_directory_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert Config(store_path_root_dir="~/store").store == Path("/somewhere/store")


def test_the_default_store_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    assert default_store() == "store"
    monkeypatch.setenv("PENSTOCK_STORE", "/data/s")
    assert default_store() == "/data/s"
