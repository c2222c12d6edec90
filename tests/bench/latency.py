"""How long a step takes to reach a browser's socket, from its end and from when the ring was read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from websockets.sync.client import connect

from bench.result import Result, child_environ, quantiles
from server_process import running_server

STEPS = 3000
WARM_UP_STEPS = 200  # tracing, the first frames
TIMEOUT_S = 60.0
RUN_ID = "latency"


def run(is_quick: bool) -> list[Result]:
    """Train in one process, watch in another, compare the clocks: they are the same machine's."""
    steps = 600 if is_quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        ends_file = Path(folder) / "ends"
        with running_server(Path(folder) / "data") as server:
            training = _train(server.url, steps, ends_file)
            arrived, is_last = _watch(server.url, steps)
            assert training.wait(TIMEOUT_S) == 0
        ended = np.frombuffer(ends_file.read_bytes())
    took, is_last = (arrived - ended)[WARM_UP_STEPS:], is_last[WARM_UP_STEPS:]
    method = f"live websocket on loopback, Keras fit with steps of about 5 ms, {len(took):,} steps"
    newest = f"{method}; of the newest step of each message, whose end is when the ring was read"
    return [
        Result("from a step's end to a browser's socket", quantiles(took), method),
        Result("from the ring's read to a browser's socket", quantiles(took[is_last]), newest),
    ]


def _train(url: str, steps: int, ends_file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.training", "latency", str(steps), str(ends_file)]
    environ = child_environ(TRAINVITALS_URL=url, TRAINVITALS_RUN=RUN_ID)
    return subprocess.Popen(command, env=environ)


def _watch(url: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return when each step arrived, and whether it was the last one of its message."""
    arrived, is_last = np.full(steps, np.nan), np.zeros(steps, dtype=bool)
    with connect(url.replace("http", "ws") + "/api/v1/live", compression=None, max_size=None) as socket:
        wanted = {"run_id": RUN_ID, "series": ["loss", "grad_norm"], "cursor": None}
        socket.send(json.dumps({"subscribe": wanted}))
        while np.isnan(arrived).any():
            message = json.loads(socket.recv(TIMEOUT_S))
            now = time.time()
            if message["t"] == "resync":
                raise RuntimeError("the watcher was too slow")
            if message["t"] == "rows":
                places = _numbers(message["steps"]).astype(int)
                arrived[places], is_last[places[-1]] = now, True
    return arrived, is_last


def _numbers(column: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column["bdata"]), dtype="<" + column["dtype"])
