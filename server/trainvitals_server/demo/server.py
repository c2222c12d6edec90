"""DemoServer: `trainvitals serve` in a process of its own, with a webhook receiver listening to it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from rich.console import Console

from trainvitals_server.demo.receiver import Receiver

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
ALERT_TIMEOUT_S = 15.0  # for what is still in the outbox when the trainings are done
POLL_S = 0.25
_READY = "listening on "


class ServerFailed(Exception):
    """The server did not start; the text is what it said."""


class DemoServer:
    """A context manager: inside it the server runs at `url` and posts its alerts to a local receiver."""

    def __init__(self, data: Path, port: int, console: Console) -> None:
        self.url = ""
        self._console = console
        self._receiver = Receiver(console)
        self._command = [
            *(sys.executable, "-m", "trainvitals_server", "serve"),
            *("--data", str(data), "--port", str(port)),
            *("--webhook", self._receiver.url, "--webhook-secret", self._receiver.secret),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._receiver.start()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ready: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, ready), daemon=True).start()
        try:
            line = ready.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = "the server does not listen"
        if not line.startswith(_READY):
            self.__exit__(None, None, None)
            raise ServerFailed(line)
        self.url = line.removeprefix(_READY)
        self._console.print(f"Watch live at [bold]{self.url}[/bold]")
        self._console.print(f"Signed webhooks go to {self._receiver.url}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._receiver.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait(self) -> None:
        """Serve until Ctrl-C, or until the server ends by itself."""
        if self._process is not None:
            self._process.wait()

    def await_alerts(self) -> None:
        """Wait until no alert is left to be sent."""
        pause, left_s = threading.Event(), ALERT_TIMEOUT_S
        while left_s > 0 and any(_is_waiting(item) for item in self._deliveries()):
            pause.wait(POLL_S)
            left_s -= POLL_S

    def _deliveries(self) -> list[dict[str, object]]:
        answer = httpx.get(f"{self.url}/api/v1/deliveries", trust_env=False)
        found: list[dict[str, object]] = answer.raise_for_status().json()["deliveries"]
        return found

    def _read(self, process: subprocess.Popen[str], ready: queue.Queue[str]) -> None:
        assert process.stdout is not None
        last = "the server ended at once"
        for line in process.stdout:
            last = line.rstrip("\n")
            if last.startswith(_READY):
                ready.put(last)
            else:
                self._console.print(f"server | {last}", markup=False)
        ready.put(last)


def _is_waiting(delivery: dict[str, object]) -> bool:
    return delivery.get("outcome") is None
