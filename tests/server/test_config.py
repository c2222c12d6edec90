from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from trainvitals_server import config as settings
from trainvitals_server.config import SETTINGS, Config, data_directory, load, render_settings
from trainvitals_server.errors import ConfigError


def parse(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    return vars(parser.parse_args(words))


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('port = 1\nmax_series = 2\nhost = "::1"\n')
    environ = {"TRAINVITALS_SERVER_PORT": "3", "TRAINVITALS_SERVER_MAX_SERIES": "4"}
    config = load(parse("--config", str(path), "--port", "5"), environ)
    assert (config.port, config.max_series, config.host) == (5, 4, "::1")


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("port = 1\n")
    assert load({}, {"TRAINVITALS_SERVER_CONFIG": str(path)}).port == 1


def test_nothing_set_is_every_default() -> None:
    assert load(parse(), {}) == Config()


def test_a_list_is_repeated_flags_or_commas_or_a_toml_array(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('allowed_hosts = ["a", "b"]\n')
    flags = parse("--allowed-hosts", "a", "--allowed-hosts", "b")
    environ = {"TRAINVITALS_SERVER_ALLOWED_HOSTS": "a, b"}
    for config in (load(flags, {}), load({}, environ), load(parse("--config", str(path)), {})):
        assert config.allowed_hosts == ("a", "b")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PORT": "high"}, "TRAINVITALS_SERVER_PORT: port must be a int, not 'high'"),
        ({"PORT": "70000"}, "port must be 0 .. 65535, not 70000"),
        ({"MAX_SERIES": "0"}, "max_series must be at least 1, not 0"),
        ({"PUBLIC_URL": "example.com"}, "public_url must begin with http:// or https://, not 'example.com'"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load({}, {f"TRAINVITALS_SERVER_{name}": value for name, value in environ.items()})
    assert str(refusal.value) == message


@pytest.mark.parametrize("text", ["prot = 1\n", "port = \n", 'port = "x"\n', "host = 5\n", "port = true\n"])
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"server\.toml"):
        load({"config": str(path)}, {})


def test_links_point_to_the_public_url_else_to_where_it_listens() -> None:
    assert Config(port=1).base_url == "http://127.0.0.1:1"
    assert Config(host="0.0.0.0", port=1).base_url == "http://127.0.0.1:1"
    assert Config(host="::1", port=1).base_url == "http://[::1]:1"
    assert Config(public_url="https://x.example/health/").base_url == "https://x.example/health"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.1.2", False), ("example.com", False), ("", False)],
)  # fmt: skip
def test_only_loopback_is_loopback(host: str, is_loopback: bool) -> None:
    assert Config(host=host).is_loopback is is_loopback


def test_the_data_directory_is_the_setting_else_the_users() -> None:
    assert data_directory(Config(data=Path("/x")), {"XDG_DATA_HOME": "/y"}) == Path("/x")
    assert data_directory(Config(), {"XDG_DATA_HOME": "/y"}) == Path("/y/trainvitals")
    assert data_directory(Config(), {}) == Path.home() / ".local" / "share" / "trainvitals"


def test_the_rendered_table_names_every_setting_with_its_flag_and_variable() -> None:
    rows = render_settings().splitlines()[2:]
    assert len(rows) == len(SETTINGS)
    for row, setting in zip(rows, SETTINGS, strict=True):
        for part in (setting.name, setting.flag, setting.variable, setting.help):
            assert part in row
