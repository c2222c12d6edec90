"""A small training by numpy, in a process of its own, with a reporter, whatever happens to its server.

`python numpy_training.py URL SPOOL RUN...` trains with a reporter for each run and prints what became of the
weights and of the rows; `--disk-full` lets no file grow, `--waits` goes on only once its input is closed.
To be run, not imported: it hides TensorFlow.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import hashlib
import json
import resource
import sys
from contextlib import ExitStack
from typing import Any

made: list[Any] = []  # the reporters


@atexit.register  # before those of trainvitals, so that it runs after them
def tell() -> None:
    """Say what each reporter has dropped in the end."""
    sys.stdout.write(json.dumps({one.run_id: one._session.sender.dropped for one in made}) + "\n")


sys.modules["tensorflow"] = None  # type: ignore[assignment] # loops are measured by numpy then, which is quick

import numpy as np  # noqa: E402 - what comes before is the point

from trainvitals import Reporter, courier, sender  # noqa: E402
from trainvitals.intake import Intake  # noqa: E402
from trainvitals.worker import Options  # noqa: E402

STEPS = 2000
SIZE = 16
MEMORY_BYTES = 20_000  # of rows in a reporter: not enough for all of them
EXIT_TIMEOUT_S = 0.5
ACK_TIMEOUT_S = 0.5
BATCH_S = 0.002  # many small frames
FLUSH_S = 60.0


def train(reporters: list[Reporter]) -> str:
    """Fit a line, and return a digest of the weights."""
    rng = np.random.default_rng(0)
    weights, bias = np.zeros(8), np.zeros(1)
    for _ in range(STEPS):
        x = rng.normal(size=(SIZE, 8))
        error = x @ weights + bias - (x[:, 0] - 2 * x[:, 1])
        gradients = [2 * x.T @ error / SIZE, 2 * error.mean(keepdims=True)]
        for reporter in reporters:
            reporter.step(loss=float(np.square(error).mean()), gradients=gradients, variables=[weights, bias])
        weights, bias = weights - 0.01 * gradients[0], bias - 0.01 * gradients[1]
    return hashlib.sha256(weights.tobytes() + bias.tobytes()).hexdigest()


def main() -> None:
    """Train without and with reporters, and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("spool")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--disk-full", action="store_true")
    parser.add_argument("--waits", action="store_true")
    args = parser.parse_args()
    sender.Options = functools.partial(Options, memory_bytes=MEMORY_BYTES)  # type: ignore[attr-defined, assignment]
    sender.Intake = functools.partial(Intake, batch_s=BATCH_S)  # type: ignore[attr-defined, assignment]
    sender.EXIT_TIMEOUT_S, courier.ACK_TIMEOUT_S = EXIT_TIMEOUT_S, ACK_TIMEOUT_S
    if args.disk_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    control = train([])
    with ExitStack() as stack:
        options = {"spool_dir": args.spool, "console": False}
        made.extend(Reporter(args.url, run_id=run, **options) for run in args.runs)
        weights = train([stack.enter_context(reporter) for reporter in made])
    said = {"control": control, "weights": weights, "steps": STEPS}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    if args.waits:
        sys.stdin.readline()
        for reporter in made:
            reporter._session.sender.flush(FLUSH_S)


if __name__ == "__main__":
    main()
