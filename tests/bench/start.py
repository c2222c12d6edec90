"""How long the server takes to start, and how much memory it has then."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from bench.result import Result, status_mib
from server_process import running_server

STARTS = 7


def run(is_quick: bool) -> list[Result]:
    """Start a server several times on an empty directory."""
    times, memory = [], []
    for _ in range(2 if is_quick else STARTS):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            with running_server(Path(folder)) as server:
                times.append(time.perf_counter() - begin)
                memory.append(status_mib(server.pid, "VmRSS"))
                server.stop()
    method = f"median of {len(times)} starts on an empty directory"
    return [
        Result("start", f"{np.median(times):.2f} s", f"{method}, from exec to `listening on`"),
        Result("memory", f"{np.median(memory):.0f} MiB", f"{method}, VmRSS"),
    ]
