"""How much longer a training step takes with a reporter."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.result import Result, child_environ, median_interval
from server_process import running_server

ROUNDS = 30
MODELS = {"dense": 400, "convolutional": 50, "transformer": 20}  # steps of one fit
TIMEOUT_S = 900


def run(is_quick: bool) -> list[Result]:
    """Measure each model against a real server on the same machine."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        return [
            result
            for name, steps in list(MODELS.items())[: 1 if is_quick else None]
            for result in _measure(name, 2 if is_quick else ROUNDS, 15 if is_quick else steps, server.url)
        ]


def _measure(name: str, rounds: int, steps: int, url: str) -> list[Result]:
    command = [sys.executable, "-m", "bench.training", name, str(rounds), str(steps)]
    output = subprocess.run(
        command,
        env=child_environ(TRAINVITALS_URL=url),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
    ).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    arms = {arm: np.asarray(seconds) for arm, seconds in json.loads(line.removeprefix("RESULT ")).items()}
    base = float(np.median(arms["without"]))
    method = (
        f"{rounds} interleaved rounds of {steps} steps in random order, paired differences, median with 95 % "
        f"bootstrap interval; server on the same cores; a step takes {base * 1e3:.2f} ms without"
    )
    added, noise = arms["with"] - arms["without"], arms["without again"] - arms["without"]
    control = "the same without a reporter in both arms"
    return [
        Result(f"added to a step, {name}", _told(added, base), method),
        Result(f"added to a step, {name}, A/A", _told(noise, base), control),
    ]


def _told(seconds: np.ndarray, base: float) -> str:
    middle, low, high = median_interval(seconds)
    return (
        f"{middle * 1e6:+,.0f} µs [{low * 1e6:+,.0f}, {high * 1e6:+,.0f}], {middle / base:+.1%} "
        f"[{low / base:+.1%}, {high / base:+.1%}]"
    )
