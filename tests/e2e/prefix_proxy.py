"""A reverse proxy that puts a server below a path prefix, as notebooks and shared hosts do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK = 1 << 16


def _rewrite(head: bytes, prefix: str) -> bytes:
    """Return a request's head without the prefix; without an upgrade, one request is one connection."""
    first, *lines = head.split(b"\r\n")
    method, path, version = first.split(b" ")
    rest = (
        path.removeprefix(prefix.encode())
        if path.startswith(prefix.encode() + b"/")
        else b"/not/below/the/prefix"
    )
    if not any(line.lower().startswith(b"upgrade:") for line in lines):
        lines = [line for line in lines if not line.lower().startswith(b"connection:")]
        lines.insert(0, b"Connection: close")
    return b"\r\n".join([b" ".join([method, rest, version]), *lines])


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _serve(client: socket.socket, address: tuple[str, int], prefix: str) -> None:
    with client, socket.create_connection(address) as server:
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(CHUNK)
            if not data:
                return
            head += data
        server.sendall(_rewrite(head, prefix))
        up = threading.Thread(target=_pump, args=(client, server), daemon=True)
        up.start()
        _pump(server, client)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        up.join()


@contextlib.contextmanager
def below_prefix(url: str, prefix: str) -> Iterator[str]:
    """Serve `url` below `prefix`; yield the new address."""
    parts = urlsplit(url)
    target = (str(parts.hostname), int(parts.port or 80))

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed below
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_serve, args=(client, target, prefix), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
