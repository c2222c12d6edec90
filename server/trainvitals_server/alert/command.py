"""`trainvitals webhook`: add, list, test and remove the webhooks of a running server, through its REST."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from trainvitals_server.alert.endpoint import FORMATS, MIN_SEVERITIES

DEFAULT_SERVER = "http://127.0.0.1:8765"
TIMEOUT_S = 30.0  # a test waits for the receiver's answer


class CommandFailed(Exception):
    """The server could not be reached, or said no; the text is for the terminal."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="send alerts to an address")
    add.add_argument("url", help="where to post to")
    add.add_argument(
        "--format", choices=FORMATS, help="what the receiver reads (default: told by the address)"
    )
    add.add_argument("--min-severity", choices=MIN_SEVERITIES, default="warning")
    add.add_argument("--secret", help="signing secret, whsec_... (default: a new one)")
    actions.add_parser("list", help="show the webhooks")
    for name, text in (("test", "send a test message"), ("remove", "send no more alerts to one")):
        actions.add_parser(name, help=text).add_argument("id", help="as `list` shows it")
    for action in actions.choices.values():
        action.add_argument(
            "--server", help=f"address of the server (default: TRAINVITALS_URL, else {DEFAULT_SERVER})"
        )
        action.add_argument("--token", help="access token (default: TRAINVITALS_TOKEN)")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; return the exit code."""
    server = (args.server or os.environ.get("TRAINVITALS_URL") or DEFAULT_SERVER).rstrip("/")
    token = args.token or os.environ.get("TRAINVITALS_TOKEN")
    try:
        return _act(args, server, token)
    except CommandFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _act(args: argparse.Namespace, server: str, token: str | None) -> int:
    if args.action == "add":
        new = {
            "url": args.url,
            "format": args.format,
            "min_severity": args.min_severity,
            "secret": args.secret,
        }
        hook = _call(server, token, "POST", "", new)
        _say(f"{hook['id']}  {hook['format']}  {hook['url']}")
        _say(f"secret, shown this once: {hook['secret']}")
        if hook.get("warning"):
            sys.stderr.write(f"warning: nothing will arrive there: {hook['warning']}\n")
        return 0
    if args.action == "list":
        for hook in _call(server, token, "GET", "")["webhooks"]:
            state = hook["disabled_why"] or f"from {hook['min_severity']} on"
            _say(f"{hook['id']}  {hook['format']}  {hook['url']}  {state}")
        return 0
    path = "/" + quote(args.id, safe="")
    if args.action == "remove":
        _call(server, token, "DELETE", path)
        _say(f"removed {args.id}")
        return 0
    result = _call(server, token, "POST", path + "/test")
    _say("delivered" if result["delivered"] else f"not delivered: {result['error']} (it will be tried again)")
    return 0 if result["delivered"] else 1


def _call(
    server: str, token: str | None, method: str, path: str, body: Mapping[str, object] | None = None
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server}/api/v1/webhooks{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise CommandFailed(f"{server} said no ({error.code}): {_reason(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CommandFailed(
            f"no trainvitals server at {server}: {reason}; `trainvitals serve` starts one"
        ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
