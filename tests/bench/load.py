"""Load: one client in a process of its own that sends frames made beforehand as fast as they are taken."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier

import numpy as np
from websockets.sync.client import connect

from trainvitals import wire

ANSWER_TIMEOUT_S = 120.0
SERIES = ("loss", "grad_norm", "loss_scale", "learning_rate", "step_time_s", "accuracy_running")
COUNTS = ("grad_nonfinite", "skipped", "optimizer_step", "batch_size")


def make_frames(frames: int, rows: int, seed: int) -> list[wire.Steps]:
    """Return `frames` frames of a plausible run: a falling, noisy loss and what comes with it."""
    rng = np.random.default_rng(seed)
    total = frames * rows
    loss = 2 / (1 + np.arange(total) / 5000) + 0.1 * rng.normal(size=total)
    columns = {
        "loss": loss,
        "grad_norm": np.exp(0.3 * rng.normal(size=total)),
        "loss_scale": np.full(total, 32768.0),
        "learning_rate": np.full(total, 1e-3),
        "step_time_s": 0.001 + 1e-5 * rng.normal(size=total),
        "accuracy_running": np.clip(1 - loss / 3, 0, 1),
        "grad_nonfinite": np.zeros(total),
        "skipped": np.zeros(total),
        "optimizer_step": np.arange(1.0, total + 1),
        "batch_size": np.full(total, 64.0),
    }
    return [_frame(columns, number, rows) for number in range(frames)]


def _frame(columns: dict[str, np.ndarray], number: int, rows: int) -> wire.Steps:
    here = slice(number * rows, (number + 1) * rows)
    packed = {
        name: wire.Column.pack(columns[name][here], dtype="i8" if name in COUNTS else "f8")
        for name in (*SERIES, *COUNTS)
    }
    times = wire.Column.pack(np.full(rows, time.time()))
    return wire.Steps(seq=number + 1, first_step=number * rows, count=rows, columns=packed, times=times)


def values_of(frames: Sequence[wire.Steps]) -> int:
    """Return how many values the frames carry."""
    return sum(frame.count * len(frame.columns) for frame in frames)


def send(url: str, run_id: str, frames: Sequence[bytes], ready: Barrier | None = None) -> tuple[float, float]:
    """Send frames and wait until the last is committed; return when it began and ended."""
    with connect(url, compression=None, max_queue=None) as socket:
        socket.send(wire.encode(wire.Hello(run_id=run_id, session_id="bench", project="bench")))
        socket.recv(ANSWER_TIMEOUT_S)
        if ready is not None:
            ready.wait(ANSWER_TIMEOUT_S)
        begin = time.time()
        for frame in frames:
            socket.send(frame)
        await_ack(socket.recv, len(frames))
        return begin, time.time()


def await_ack(receive: object, last_seq: int) -> None:
    """Read answers until everything up to `last_seq` is acknowledged."""
    assert callable(receive)
    while True:
        answer = wire.decode_server(receive(ANSWER_TIMEOUT_S))
        if isinstance(answer, wire.Reject):
            raise RuntimeError(f"the server rejected a frame: {answer.message}")
        if isinstance(answer, wire.Ack) and answer.acked_seq >= last_seq:
            return
