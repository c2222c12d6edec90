"""Config: every setting of the server, declared once.

A setting is one line in `Config`: its name, type, default and help. The command line's flags, the environment
variables `TRAINVITALS_SERVER_*`, the keys of the TOML file and the page of documentation are made from it.
A flag beats the environment, which beats the file.
"""
# ruff: noqa: RUF009 - `_setting` is `dataclasses.field` under another name

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import ipaddress
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from trainvitals_server.errors import ConfigError

T = TypeVar("T")

ENV_PREFIX = "TRAINVITALS_SERVER_"
DATABASE_FILE = "trainvitals.db"
ADDRESS_FILE = "address"  # beside the database: where its server was last
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def _setting(default: T, text: str) -> T:
    field: Any = dataclasses.field(default=default, metadata={"help": text})
    return field  # type: ignore[no-any-return]  # a field at run time, its default to the type checker


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one server; `None` and an empty tuple mean "not set"."""

    host: str = _setting("127.0.0.1", "address to listen on; beyond loopback a token is needed")
    port: int = _setting(8765, "port to listen on; 0 picks a free one")
    data: Path | None = _setting(None, "directory of the database; the default is the user's data directory")
    public_url: str | None = _setting(
        None, "address under which people reach the page, for links in alerts and in the terminal"
    )
    token: str | None = _setting(None, "an access token beside those of `trainvitals token create`")
    allowed_hosts: tuple[str, ...] = _setting((), "host names, beside loopback, that requests may name")
    webhook: tuple[str, ...] = _setting((), "address that alerts go to; Slack's and Discord's are recognised")
    webhook_secret: str | None = _setting(
        None, "secret (whsec_...) that signs what goes to those; without it each gets one of its own"
    )
    webhook_allow_networks: tuple[str, ...] = _setting(
        (), "private networks that webhooks may reach; loopback is one while the server listens on it only"
    )
    max_series: int = _setting(512, "series that one run may have; frames that bring more are rejected")

    @property
    def base_url(self) -> str:
        """Where links point to, without a slash at the end."""
        return (self.public_url or f"http://{_url_host(self.host)}:{self.port}").rstrip("/")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings; `kind` is its type in words."""

    name: str
    kind: str
    default: object
    help: str

    @property
    def flag(self) -> str:
        """Return its flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return its environment variable."""
        return ENV_PREFIX + self.name.upper()


def _kind(annotation: object) -> str:
    if annotation == tuple[str, ...]:
        return "list"
    words = {str: "text", int: "int", float: "float", bool: "bool", Path: "path"}
    for kind, word in words.items():
        if annotation in (kind, kind | None):
            return word
    raise TypeError(f"no way to read a setting of type {annotation}")


def _table() -> tuple[Setting, ...]:
    hints = get_type_hints(Config)
    return tuple(
        Setting(field.name, _kind(hints[field.name]), field.default, field.metadata["help"])
        for field in dataclasses.fields(Config)
    )


SETTINGS = _table()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flag of every setting, and `--config FILE`, to `parser`; what is not typed stays absent."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings, by their names")
    for setting in SETTINGS:
        action = {"list": "append", "bool": "store_true"}.get(setting.kind, "store")
        shown = "" if setting.default in (None, (), False) else f" (default: {setting.default})"
        parser.add_argument(setting.flag, action=action, default=argparse.SUPPRESS, help=setting.help + shown)


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    """Return the settings of `flags`, then `environ`, then the TOML file that one of them names.

    Raises:
        ConfigError: if a value cannot be used or the file has a key that is no setting.
    """
    path = flags.get("config") or environ.get(ENV_PREFIX + "CONFIG")
    table = _read_file(Path(str(path))) if path else {}
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        for where, source in ((setting.flag, flags), (setting.variable, environ), (f"{path}", table)):
            key = setting.variable if source is environ else setting.name
            if key in source:
                values[setting.name] = _parse(setting, source[key], where)
                break
    return _checked(Config(**values))


def _read_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error
    unknown = sorted(set(table) - {setting.name for setting in SETTINGS})
    if unknown:
        known = ", ".join(setting.name for setting in SETTINGS)
        raise ConfigError(f"{path} has no setting of ours called {', '.join(unknown)}; there are {known}")
    return table


def _parse(setting: Setting, value: object, where: str) -> object:
    try:
        return _convert(setting.kind, value)
    except (ValueError, TypeError):
        raise ConfigError(f"{where}: {setting.name} must be a {setting.kind}, not {value!r}") from None


def _convert(kind: str, value: object) -> object:
    if kind == "list":
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
            raise ValueError(value)
        return tuple(item.strip() for item in items if item.strip())
    if kind == "bool":
        word = str(value).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(value)
        return word in _TRUE
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path):
        raise ValueError(value)
    if kind == "int":
        return int(str(value))
    if kind == "float":
        return float(str(value))
    if isinstance(value, int | float):
        raise ValueError(value)
    return Path(value).expanduser() if kind == "path" else str(value)


def _checked(config: Config) -> Config:
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port must be 0 .. 65535, not {config.port}")
    if config.max_series < 1:
        raise ConfigError(f"max_series must be at least 1, not {config.max_series}")
    if config.public_url and not config.public_url.startswith(("http://", "https://")):
        raise ConfigError(f"public_url must begin with http:// or https://, not {config.public_url!r}")
    return config


def data_directory(config: Config, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the database lives: the setting, else the user's data directory on this platform."""
    if config.data is not None:
        return config.data
    home = Path.home()
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "trainvitals"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "trainvitals"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "trainvitals"


def remember_address(config: Config) -> None:
    """Note beside the database where links to its server lead, for commands that know the folder only."""
    with contextlib.suppress(OSError):  # then `token link` wants its flags
        (data_directory(config) / ADDRESS_FILE).write_text(config.base_url + "\n", encoding="utf-8")


def last_address(config: Config) -> str:
    """Return where links lead: as the settings say, else where the server of this folder was last."""
    default = Config()
    if (config.host, config.port, config.public_url) != (default.host, default.port, default.public_url):
        return config.base_url
    try:
        text = (data_directory(config) / ADDRESS_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return config.base_url
    return text if text.startswith(("http://", "https://")) else config.base_url


def render_settings() -> str:
    """Return the table of settings as Markdown: what `docs/settings.md` shows."""
    lines = ["| setting | flag | environment variable | default | what it is |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        default = "" if setting.default in (None, ()) else f"`{setting.default}`"
        cells = (f"`{setting.name}`", f"`{setting.flag}`", f"`{setting.variable}`", default, setting.help)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _url_host(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
