"""How long a chart over a million steps takes to read, and how much disk its values take."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import httpx

from bench.load import make_frames, send, values_of
from bench.result import Result, quantiles
from server_process import ServerProcess, running_server
from trainvitals import wire

ROWS = 4096
STEPS = 1_000_000
PIXELS = 1000
READS = 50
COMPACTED_TIMEOUT_S = 300.0
POLL_S = 0.5
LEFT_FRAMES = 2  # the newest rows wait for more of their kind


def run(is_quick: bool) -> list[Result]:
    """Store a long run, wait until it is compacted, and read charts of it."""
    frames = make_frames((50_000 if is_quick else STEPS) // ROWS, ROWS, seed=2)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        send(server.websocket_url, "long", [wire.encode(frame) for frame in frames])
        _await_compaction(Path(folder))
        whole = _read(server, 0, len(frames) * ROWS)
        part = _read(server, ROWS * 3, ROWS * 3 + 100_000)
        server.stop()
        size = sum(path.stat().st_size for path in Path(folder).iterdir() if path.suffix == ".db")
    steps, values = len(frames) * ROWS, values_of(frames)
    method = f"GET series=loss&pixels={PIXELS} over HTTP, {READS} times, {steps:,} steps stored and compacted"
    return [
        Result("read of a chart, all steps", quantiles(whole), method),
        Result("read of a chart, zoomed to 100,000 steps", quantiles(part), method),
        Result(
            "disk",
            f"{size / values:.2f} bytes a value",
            f"file after shutdown / {values:,} values of 10 series with noise, pyramid and index included",
        ),
    ]


def _read(server: ServerProcess, first: int, last: int) -> list[float]:
    found = []
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for _ in range(READS + 1):
            begin = time.perf_counter()
            answer = client.get(
                "/api/v1/runs/long/series",
                params={"names": "loss", "from": first, "to": last, "pixels": PIXELS},
            )
            found.append(time.perf_counter() - begin)
            assert answer.status_code == 200, answer.text
    return found[1:]  # the first one opens the connection


def _await_compaction(folder: Path) -> None:
    (file,) = folder.glob("*.db")
    pause, left, waited_s = threading.Event(), LEFT_FRAMES + 1, 0.0
    while left > LEFT_FRAMES:
        if waited_s >= COMPACTED_TIMEOUT_S:
            raise TimeoutError(f"{left} frames are not compacted after {waited_s:g} s")
        pause.wait(POLL_S)
        waited_s += POLL_S
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        (left,) = connection.execute("SELECT count(*) FROM frame WHERE kind = 'steps'").fetchone()
        connection.close()
