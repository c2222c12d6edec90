"""Validations that merely scatter are no overfitting, whatever their noise; those that turn are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator

from traces import batch_of
from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.overfitting import OverfittingFold

SEEDS = 100
STEPS = 8  # between two validations
Law = Callable[[Generator, int], FloatArray]

NOISE: dict[str, Law] = {
    "normal": lambda rng, count: np.asarray(0.8 + 0.05 * rng.normal(size=count)),
    "heavy tails": lambda rng, count: np.asarray(0.8 + 0.05 * rng.standard_t(3, size=count)),
    "a factor": lambda rng, count: np.asarray(0.8 * np.exp(0.2 * rng.normal(size=count))),
    "falling": lambda rng, count: np.asarray(
        0.6 + 2 * np.exp(-np.arange(count) / (count / 8)) + 0.05 * rng.normal(size=count)
    ),
}


def run_of(validation: FloatArray, rng: Generator) -> Batch:
    """Return a run whose training loss falls, with a validation every few steps."""
    count = len(validation)
    training = 0.1 + 2 * np.exp(-np.arange(count) / (count / 4))
    loss = np.repeat(training, STEPS) * (1 + 0.05 * rng.normal(size=count * STEPS))
    there = np.arange(len(loss)) % STEPS == STEPS - 1
    return batch_of({"loss": loss, "val_loss": np.repeat(validation, STEPS)}, present={"val_loss": there})


def told(law: Law, count: int) -> list[int]:
    """Return the seeds of which overfitting was told."""
    found = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        if OverfittingFold().feed(run_of(law(rng, count), rng)):
            found.append(seed)
    return found


@pytest.mark.parametrize("count", [12, 50])
@pytest.mark.parametrize("law", NOISE)
def test_noise_is_no_overfitting(law: str, count: int) -> None:
    assert len(told(NOISE[law], count)) <= 1


@pytest.mark.parametrize("count", [20, 50])
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_validations_that_turn_are(noise: float, count: int) -> None:
    def turning(rng: Generator, count: int) -> FloatArray:
        share = np.arange(count) / count
        rise = np.clip(share - 0.3, 0, None)
        return np.asarray(0.8 + 0.5 * np.exp(-10 * share) + rise + noise * rng.normal(size=count))

    assert len(told(turning, count)) >= 0.95 * SEEDS
