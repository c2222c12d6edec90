"""`trainvitals token`: create, list and revoke access tokens, in the database itself.

A running server sees a change within seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime

from trainvitals_server import config as settings
from trainvitals_server.access import KNOWN_S, LOGIN_PATH
from trainvitals_server.errors import ConfigError
from trainvitals_server.store import tokens
from trainvitals_server.store.database import Database
from trainvitals_server.store.tokens import Token


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a token for a program; it is shown once")
    create.add_argument("--name", default="", help="what it is for")
    actions.add_parser("list", help="show the tokens' ids, names and ages")
    link = actions.add_parser("link", help="print a login link for a browser; it works once, for an hour")
    for flag in ("--host", "--port", "--public-url"):
        link.add_argument(
            flag, default=argparse.SUPPRESS, help="as the server has it (default: where it was last)"
        )
    actions.add_parser("revoke", help="make a token worthless").add_argument("id", help="as `list` shows it")
    for action in actions.choices.values():
        action.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="the server's database")
        action.add_argument("--config", metavar="FILE", help="the server's TOML file")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; return the exit code."""
    try:
        config = settings.load(vars(args), os.environ)
        folder = settings.data_directory(config)
        folder.mkdir(parents=True, exist_ok=True)
        database = Database(folder / settings.DATABASE_FILE)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"trainvitals token: {error}\n")
        return 2
    try:
        return _act(args, config, database)
    finally:
        database.close()


def _act(args: argparse.Namespace, config: settings.Config, database: Database) -> int:
    now = time.time()
    if args.action == "create":
        token_id, token = database.write(lambda c: tokens.create_token(c, "access", args.name, now)).result()
        _say(f"{token_id}  {token}")
    elif args.action == "link":
        _, token = database.write(lambda c: tokens.create_token(c, "login", "login link", now)).result()
        _say(f"{settings.last_address(config)}{LOGIN_PATH}?token={token}")
    elif args.action == "list":
        for found in database.read(tokens.list_tokens):
            _say(_line(found, now))
    elif not database.write(lambda c: tokens.revoke_token(c, args.id, now)).result():
        sys.stderr.write(f"no token {args.id}; `trainvitals token list` shows them\n")
        return 1
    else:
        _say(f"revoked {args.id}; a running server refuses it within {KNOWN_S:.0f} seconds")
    return 0


def _line(token: Token, now: float) -> str:
    state = "valid" if token.is_valid(now) else "revoked" if token.revoked_at is not None else "expired"
    used = "never used" if token.last_used_at is None else f"last used {_date(token.last_used_at)}"
    return f"{token.token_id}  {state}  created {_date(token.created_at)}  {used}  {token.name}".rstrip()


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
