"""Receiver: what stands at the other end of a webhook. It believes nothing that is not signed.

The check is written out here, from the text of Standard Webhooks 1.0, and shares no code with the sender: it
is also an example of how to receive alerts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rich.console import Console
from rich.markup import escape

TOLERANCE_S = 300  # an older message may be a recording
MAX_BODY_BYTES = 1 << 20


def is_genuine(secret: str, headers: dict[str, str], body: bytes, now: float) -> bool:
    """Return whether `body` was signed with `secret`, and lately."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(now - int(timestamp)) > TOLERANCE_S:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = "v1," + base64.b64encode(digest).decode()
    return any(
        hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").split(" ")
    )


class Receiver:
    """A local HTTP server that prints each alert whose signature is right."""

    def __init__(self, console: Console) -> None:
        self.secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self.verified: list[str] = []  # the type of each genuine message
        self._console = console
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self._server.server_port}/alerts"

    def start(self) -> None:
        """Listen, in a thread."""
        threading.Thread(target=self._server.serve_forever, name="demo-receiver", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Print a genuine alert; return the HTTP status to answer with."""
        if not is_genuine(self.secret, headers, body, time.time()):
            self._console.print("[red]webhook[/red] | a message with a wrong signature, refused")
            return 401
        message = json.loads(body)
        self.verified.append(message["type"])
        self._console.print(f"[cyan]webhook[/cyan] | signature ok | {escape(message['data']['text'])}")
        return 204

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                if size > MAX_BODY_BYTES:
                    self.send_response(413)
                else:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    self.send_response(receiver.take(headers, self.rfile.read(size)))
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
