"""`trainvitals serve`: run the server and the dashboard until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainvitals import wire
from trainvitals_server import config as settings
from trainvitals_server.config import Config
from trainvitals_server.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from trainvitals_server.services import Services

SHUTDOWN_S = 5  # for requests that are under way; then they are cut off
BACKLOG = 2048
# Room for a frame that is a little too large to get a typed answer; one beyond it closes the socket.
MAX_MESSAGE_BYTES = 2 * wire.MAX_FRAME_BYTES


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags, one for each setting."""
    settings.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit code."""
    try:
        config = settings.load(vars(args), os.environ)
        listener = bind(config)
        server = _build(dataclasses.replace(config, port=listener.getsockname()[1]))
    except ConfigError as error:
        sys.stderr.write(f"trainvitals serve: {error}\n")
        return 2
    # uvicorn raises the signal that ended it once more when it is done: by then there is nothing left to end.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    return 0 if server.started else 1


def bind(config: Config) -> socket.socket:
    """Return a socket that is bound to the address of `config`, not yet listening.

    Raises:
        ConfigError: if the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off: small answers would wait 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name != "nt":  # there it would let two servers share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        listener.close()
        way_out = "; try --port 0" if error.errno == errno.EADDRINUSE else ""
        text = error.strerror or error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {text}{way_out}") from error
    return listener


def _build(config: Config) -> uvicorn.Server:
    import uvicorn  # late, so that `--help` and a wrong flag answer at once

    from trainvitals_server.app import create_app
    from trainvitals_server.connections import PromptProtocol, connections_for, raise_file_limit
    from trainvitals_server.websocket import Websocket

    class Server(uvicorn.Server):
        async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
            await super().startup(list(sockets or ()))
            if self.started:
                _keep_what_is_loaded()
                await asyncio.to_thread(settings.remember_address, config)
                sys.stdout.write(f"listening on {_address(config)}\n")
                sys.stdout.write(await asyncio.to_thread(_how_to_get_in, services))
                sys.stdout.flush()

    app = create_app(config)
    services: Services = app.state.services
    return Server(
        uvicorn.Config(
            app,
            http=PromptProtocol,
            limit_concurrency=connections_for(raise_file_limit()),  # beyond it, an answer 503
            ws=Websocket,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,  # a deflate bomb costs memory; rows compress badly anyway
            timeout_graceful_shutdown=SHUTDOWN_S,
            backlog=BACKLOG,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
    )


def _keep_what_is_loaded() -> None:
    """Take what was loaded out of the garbage collector's sight: it stays, and to walk it takes 50 ms."""
    gc.freeze()


def _how_to_get_in(services: Services) -> str:
    from trainvitals_server.access import first_token, login_link

    link, token = login_link(services), first_token(services)
    lines = [] if link is None else [f"open in a browser, once, within the hour: {link}"]
    if token is not None:
        lines.append(f"token for reporters (TRAINVITALS_TOKEN), shown this once: {token}")
    return "".join(line + "\n" for line in lines)


def _address(config: Config) -> str:
    host = f"[{config.host}]" if ":" in config.host and not config.host.startswith("[") else config.host
    return f"http://{host}:{config.port}"
