"""What a fold holds on to does not grow with the run."""

from __future__ import annotations

import numpy as np

from traces import batch_of, learning
from trainvitals_server.fold import RunFold


def state_after(rows: int) -> int:
    fold = RunFold("run")
    norm = np.exp(0.3 * np.random.default_rng(0).normal(size=rows))
    batch = batch_of({"loss": learning(rows), "grad_norm": norm, "loss_scale": np.full(rows, 4096.0)})
    fold.rows(0, "a", batch)
    return len(fold.dump())


def test_the_state_of_a_run_eight_times_as_long_is_no_larger_than_its_snapshots_allow() -> None:
    short, long = state_after(10_000), state_after(80_000)
    assert long < 1.3 * short  # between 9 and 20 snapshots, whatever the length
