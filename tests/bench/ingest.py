"""How many values a second eight clients can bring, and what that does to the event loop.

Beside the server a loop that does nothing is watched: what the clients alone do to any loop on these cores.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.pool import AsyncResult
from pathlib import Path

from bench.lag import bare_loop, lags_between
from bench.load import make_frames, send, values_of
from bench.result import Result, child_environ, quantiles, status_mib
from server_process import running_server
from trainvitals import wire

CLIENTS = 8
SHAPES = {"full frames": (1024, 160), "frames of 50 ms at 1 ms a step": (50, 300)}  # rows, frames a client

LAG = "how late a 5 ms sleep, from the first send to the last ack,"


def run(is_quick: bool) -> list[Result]:
    """Measure each shape of frames on a fresh server."""
    return [result for name, shape in SHAPES.items() for result in _measure(name, *shape, is_quick)]


def _measure(name: str, rows: int, count: int, is_quick: bool) -> list[Result]:
    clients = 2 if is_quick else CLIENTS
    frames = make_frames(count, rows, seed=1)  # fewer would be over before the first look at the loop
    encoded = [wire.encode(frame) for frame in frames]
    with tempfile.TemporaryDirectory() as folder:
        lags, bare_lags = Path(folder) / "lags", Path(folder) / "bare"
        launcher = (str(Path(__file__).with_name("measured_server.py")), str(lags), "serve")
        environ = child_environ()
        with (
            bare_loop(bare_lags),
            running_server(Path(folder) / "data", launcher=launcher, environ=environ) as server,
        ):
            begin, end = _storm(server.websocket_url, encoded, clients)
            peak = status_mib(server.pid, "VmHWM")
            server.stop()
        late, bare = (lags_between(file, begin, end) for file in (lags, bare_lags))
    values = clients * values_of(frames)
    shape = f"{clients} clients, {rows} rows x {len(frames[0].columns)} series a frame"
    method = f"{shape}, {values:,} values, first send to last ack after commit; clients on the same cores"
    rate = f"{values / (end - begin) / 1e3:,.0f} k values/s"
    return [
        Result(f"ingest, {name}", rate, method),
        Result(f"event-loop lag, {name}", quantiles(late), f"{LAG} in the server's loop ends"),
        Result(
            f"event-loop lag, {name}, control", quantiles(bare), f"{LAG} ends in a process that only sleeps"
        ),
        Result(f"memory at its peak, {name}", f"{peak:.0f} MiB", "VmHWM of the server after that"),
    ]


def _storm(url: str, encoded: Sequence[bytes], clients: int) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(clients) as pool:
        ready = manager.Barrier(clients)
        tasks: list[AsyncResult[tuple[float, float]]] = [
            pool.apply_async(send, (url, f"run {number}", encoded, ready)) for number in range(clients)
        ]
        times = [task.get() for task in tasks]
    return min(begin for begin, _ in times), max(end for _, end in times)
