"""The command line `trainvitals`: a table of commands.

Each command is a module with `configure(parser)` and `run(args)`. Only the module of the command that was
typed is imported, so `check` and `sync` work with the base install and `--help` is instant.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from trainvitals import __version__


class Command(NamedTuple):
    """Where a command lives, what it does in one line, and which extra it needs."""

    module: str
    help: str
    extra: str = ""


COMMANDS = {
    "serve": Command("trainvitals_server.serve", "run the server and the dashboard", "server"),
    "demo": Command("trainvitals_server.demo", "watch real trainings fail, and one that does not", "demo"),
    "check": Command("trainvitals_server.check", "judge training logs without a server"),
    "sync": Command("trainvitals.sync", "upload what a reporter left in its spool"),
    "replay": Command("trainvitals.replay", "run the failing step of a bundle again"),
    "token": Command("trainvitals_server.token_command", "create, list or revoke access tokens", "server"),
    "webhook": Command("trainvitals_server.alert.command", "add, list, test or remove webhooks", "server"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="trainvitals", description="The live vital signs of a training run."
    )
    parser.add_argument("--version", action="version", version=f"trainvitals {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    module = None
    for name, command in COMMANDS.items():
        child = commands.add_parser(name, help=command.help, description=command.help)
        if name == chosen:
            module = _load(command, parser)
            module.configure(child)
    args = parser.parse_args(words)
    if module is None:
        parser.error(f"unknown command {args.command!r}")
    return int(module.run(args))


def _load(command: Command, parser: argparse.ArgumentParser):  # type: ignore[no-untyped-def]  # noqa: ANN202
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if not command.extra or (error.name or "").startswith("trainvitals"):
            raise
        parser.exit(2, f"this command needs {error.name}: pip install 'trainvitals[{command.extra}]'\n")


if __name__ == "__main__":
    sys.exit(main())
