"""A real server in a process of its own, on a real database file, that a test may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_SERVE = ("-m", "trainvitals_server", "serve")
_READY = "listening on "


class ServerProcess:
    """`python -m trainvitals_server serve` on `data`; the first start picks a port that later ones keep."""

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        launcher: Sequence[str] = _SERVE,
        port: int = 0,
    ) -> None:
        """`launcher` is what python runs in place of the server, for a test that hurts it from inside."""
        self.data = data
        self.url = ""
        self.lines: list[str] = []
        self._arguments, self._environ, self._launcher = arguments, environ or {}, launcher
        self.port = port
        self._news = threading.Condition()
        self._is_over = False
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def websocket_url(self) -> str:
        """Return where frames go in."""
        return self.url.replace("http://", "ws://") + "/api/v1/ingest"

    def start(self) -> None:
        """Start the server and return once it listens."""
        command = [sys.executable, *self._launcher, "--port", str(self.port), "--data", str(self.data)]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            env={**os.environ, **self._environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines.clear()
        self._is_over = False
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        try:
            self.url = self.line(_READY).removeprefix(_READY)
        except AssertionError:
            if self.is_running:
                self.kill()
            raise
        self.port = int(self.url.rsplit(":", 1)[1])

    def line(self, text: str) -> str:
        """Wait for a line of its output that contains `text` and return it."""
        with self._news:
            assert self._news.wait_for(lambda: self._is_over or self._find(text), START_TIMEOUT_S), self.lines
            found = self._find(text)
        assert found, f"the server ended without {text!r}: {self.lines}"
        return found[0]

    def _find(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._end(None)

    def _end(self, sign: signal.Signals | None) -> int:
        assert self._process is not None
        if sign is not None:
            self._process.send_signal(sign)
        code = self._process.wait(STOP_TIMEOUT_S)
        if self._reader is not None:
            self._reader.join(STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    @property
    def is_running(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


@contextlib.contextmanager
def running_server(
    data: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    launcher: Sequence[str] = _SERVE,
) -> Iterator[ServerProcess]:
    """Run a server for as long as the block lasts."""
    server = ServerProcess(data, arguments=arguments, environ=environ, launcher=launcher)
    server.start()
    try:
        yield server
    finally:
        if server.is_running:
            server.kill()
