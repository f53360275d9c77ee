"""The configuration's sources: which one counts, and what is wrong is named with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from penstock.shared import config_sources
from penstock.shared.config import Config
from penstock.shared.config_rules import check_config
from penstock.shared.config_sources import default_store, parse_setting
from penstock.shared.errors import ConfigError

REPOSITORY = Path(__file__).parent.parent.parent
DOCUMENTED = REPOSITORY / "configs" / "broker.toml"


def load_config(file: Path | None = None, flags: dict[str, object] | None = None) -> Config:
    return config_sources.load_config(file, flags).config


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
    assert caught.value.hint == f"Did you mean {near}? All keys: penstock config show"
    assert caught.value.exit_code == 2


def test_an_unknown_key_that_is_near_nothing_points_to_the_list() -> None:
    with pytest.raises(ConfigError, match="All keys: penstock config show"):
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
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(file)


def test_a_home_directory_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert Config(store_path_root_dir="~/store").store == Path("/somewhere/store")


def test_the_default_store_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    assert default_store() == "store"
    monkeypatch.setenv("PENSTOCK_STORE", "/data/s")
    assert default_store() == "/data/s"


# --- layers ---


def test_flags_go_over_the_environment_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("produce_port = 1\nconsume_port = 2\nmax_queues = 3\n")
    environment = {
        "PENSTOCK_BROKER_PRODUCE_PORT": "4",
        "PENSTOCK_BROKER_CONSUME_PORT": "5",
        "PENSTOCK_STORE": "/data/s",
        "HOME": "/root",
        "PENSTOCK_SOMETHING": "else",
    }
    config, origins = config_sources.load_config(file, {"produce_port": 6}, environment)
    assert config == Config(
        produce_port=6, consume_port=5, max_queues=3, store_path_root_dir="/data/s"
    )
    assert list(origins) == list(Config.__struct_fields__)
    assert {key: origin for key, origin in origins.items() if origin != "default"} == {
        "produce_port": "flag",
        "consume_port": "PENSTOCK_BROKER_CONSUME_PORT",
        "max_queues": f"file {file}",
        "store_path_root_dir": "PENSTOCK_STORE",
    }


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PENSTOCK_BROKER_PRODUCE_PROT", "1", "Did you mean produce_port?"),
        ("PENSTOCK_BROKER_PRODUCE_PORT", "x", "PENSTOCK_BROKER_PRODUCE_PORT"),
        ("PENSTOCK_BROKER_STORE_PATH_ROOT_DIR", "x", "Set PENSTOCK_STORE instead"),
        ("PENSTOCK_BROKER_MAX_QUEUES", "0", "It must be from 1"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_sources.load_config(None, None, {name: value})
    assert said in str(caught.value)


def test_text_stands_for_numbers_and_truths_but_not_in_a_file(tmp_path: Path) -> None:
    assert load_config(None, {"max_queues": "7", "message_index_enable": "false"}) == Config(
        max_queues=7, message_index_enable=False
    )
    file = tmp_path / "broker.toml"
    file.write_text("max_queues = '7'")
    with pytest.raises(ConfigError, match="max_queues"):
        load_config(file)


def test_a_setting_is_a_key_and_a_value() -> None:
    assert parse_setting("delete_when=04;16") == ("delete_when", "04;16")
    assert parse_setting("a==b") == ("a", "=b")
    for wrong in ("max_queues", "=1", ""):
        with pytest.raises(ConfigError, match="key=value"):
            parse_setting(wrong)
