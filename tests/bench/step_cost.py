"""How much longer a training step takes with a reporter."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.result import Result, child_environ, median_interval
from server_process import running_server

ROUNDS = 30
PROCESSES = 3  # that share the rounds: each traces the steps anew, see `training.measure_cost`
# Steps of one fit: with fewer, what a fit costs at its begin would be a part of every step.
MODELS = {"dense": 400, "dense under XLA": 400, "convolutional": 120, "transformer": 50, "heavy": 80}
TIMEOUT_S = 900


def run(is_quick: bool) -> list[Result]:
    """Measure each model against a real server on the same machine."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder)) as server,
        running_sink() as sink,
    ):
        urls = {"TRAINVITALS_URL": server.url, "TRAINVITALS_SINK": sink}
        return [
            result
            for name, steps in list(MODELS.items())[: 1 if is_quick else None]
            for result in _measure(name, 1 if is_quick else ROUNDS, 15 if is_quick else steps, urls)
        ]


@contextmanager
def running_sink() -> Iterator[str]:
    """Yield the address of a server that only acknowledges, in a process of its own."""
    command = [sys.executable, "-m", "bench.sink"]
    with subprocess.Popen(command, env=child_environ(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def _measure(name: str, rounds: int, steps: int, urls: dict[str, str]) -> list[Result]:
    processes = min(PROCESSES, rounds)
    found = [_seconds(name, rounds // processes, steps, urls) for _ in range(processes)]
    arms = {arm: np.concatenate([one[arm] for one in found]) for arm in found[0]}
    base = float(np.median(arms["without"]))
    method = (
        f"{rounds} interleaved rounds of {steps} steps in random order, in {processes} processes, paired "
        f"differences, median with 95 % bootstrap interval; server on the same cores; a step takes "
        f"{base * 1e3:.2f} ms without"
    )
    methods = {
        "with": ("", method),
        "with, server elsewhere": (", server elsewhere", "the same, but the server only acknowledges"),
        "without again": (", A/A", "the same without a reporter in both arms, which are traced apart"),
        "TerminateOnNaN": (", by TerminateOnNaN", "the same with Keras' callback"),
        "TensorBoard": (", by TensorBoard", 'the same with `update_freq="batch"`'),
        "enable_check_numerics": (
            ", by check_numerics",
            "the same with `tf.debugging.enable_check_numerics`",
        ),
    }
    return [
        Result(f"added to a step, {name}{what}", _told(arms[arm] - arms["without"], base), how)
        for arm, (what, how) in methods.items()
        if arm in arms
    ]


def _seconds(name: str, rounds: int, steps: int, urls: dict[str, str]) -> dict[str, np.ndarray]:
    """Return what one process measures: the seconds a step of each arm in each round."""
    command = [sys.executable, "-m", "bench.training", name, str(rounds), str(steps)]
    output = subprocess.run(
        command,
        env=child_environ(**urls),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
    ).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return {arm: np.asarray(seconds) for arm, seconds in json.loads(line.removeprefix("RESULT ")).items()}


def _told(seconds: np.ndarray, base: float) -> str:
    middle, low, high = median_interval(seconds)
    return (
        f"{middle * 1e6:+,.0f} µs [{low * 1e6:+,.0f}, {high * 1e6:+,.0f}], {middle / base:+.1%} "
        f"[{low / base:+.1%}, {high / base:+.1%}]"
    )
