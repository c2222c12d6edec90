"""Restless but healthy losses: what must not page anybody. Numpy only; each takes a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainvitals.wire import FloatArray


def _falling(
    rng: np.random.Generator, rows: int, start: float, floor: float, tau: float, noise: float = 0.05
) -> FloatArray:
    curve = floor + (start - floor) * np.exp(-np.arange(rows) / tau)
    return np.asarray(curve * (1 + noise * rng.normal(size=rows)))


def curriculum(seed: int) -> FloatArray:
    """Start a harder task every 300 steps."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [_falling(rng, 300, rng.uniform(1, 2.5) * (1 + 0.2 * part), rng.uniform(0.1, 0.5),
                  rng.uniform(20, 80), 0.08)
         for part in range(5)]
    )  # fmt: skip


def warm_restarts(seed: int) -> FloatArray:
    """Bump up at each restart of the learning rate."""
    rng = np.random.default_rng(seed)
    loss = _falling(rng, 1500, 2.3, 0.2, 200)
    for step in (300, 750, 1200):
        loss[step:] += rng.uniform(0.2, 1.2) * np.exp(-np.arange(1500 - step) / rng.uniform(20, 80))
    return loss


def imbalance(seed: int) -> FloatArray:
    """Cost a hundred times more in every twentieth batch."""
    rng = np.random.default_rng(seed)
    loss = np.abs(_falling(rng, 2000, 0.7, 0.01, 150, 0.3))
    return np.asarray(loss + (rng.random(2000) < 0.05) * rng.uniform(0.3, 2, 2000))


def gan(seed: int) -> FloatArray:
    """Wander around ln 2."""
    rng = np.random.default_rng(seed)
    return np.asarray(
        np.clip(0.69 + np.cumsum(0.005 * rng.normal(size=1500)), 0.3, 1.5) + 0.02 * rng.normal(size=1500)
    )


def policy_gradient(seed: int) -> FloatArray:
    """Scatter around zero, with heavy tails, learning nothing that the loss would show."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_t(3, size=1500) * rng.uniform(0.01, 10))


def crossing_zero(seed: int) -> FloatArray:
    """Fall through zero, as a negative log-likelihood may."""
    rng = np.random.default_rng(seed)
    return np.asarray(4 * np.exp(-np.arange(1500) / 150) - 2 + 0.2 * rng.normal(size=1500))


def from_a_thousand(seed: int) -> FloatArray:
    """Start at a thousand."""
    rng = np.random.default_rng(seed)
    return _falling(rng, 1500, rng.uniform(500, 2000), rng.uniform(5, 50), 200, 0.1)


def near_zero(seed: int) -> FloatArray:
    """Fall for ever, by orders of magnitude, with multiplicative noise."""
    rng = np.random.default_rng(seed)
    return np.asarray(np.exp(-np.arange(2000) / rng.uniform(60, 200) + 0.5 * rng.normal(size=2000)))


def label_smoothing(seed: int) -> FloatArray:
    """Stay on a high floor."""
    rng = np.random.default_rng(seed)
    return _falling(rng, 1500, 2.5, rng.uniform(0.9, 1.4), 200, 0.02)


def warm_up_bump(seed: int) -> FloatArray:
    """Rise once while the learning rate warms up."""
    rng = np.random.default_rng(seed)
    bump = np.exp(-(((np.arange(1000) - rng.integers(3, 60)) / rng.uniform(5, 30)) ** 2))
    return np.asarray(_falling(rng, 1000, 2.5, 0.4, 200) + rng.uniform(0.1, 2) * bump)


def saw_tooth(seed: int) -> FloatArray:
    """Repeat with the accumulation of eight batches."""
    rng = np.random.default_rng(seed)
    return np.asarray(_falling(rng, 1500, 2.5, 0.4, 200) * (1 + 0.3 * (np.arange(1500) % 8) / 8))


def epoch_boundaries(seed: int) -> FloatArray:
    """Jump at each epoch."""
    rng = np.random.default_rng(seed)
    return np.asarray(_falling(rng, 1500, 2.5, 0.3, 200) * (1 + 0.4 * np.exp(-(np.arange(1500) % 100) / 10)))


def heavy_tails(seed: int) -> FloatArray:
    """Have outliers of any size now and then."""
    rng = np.random.default_rng(seed)
    return np.asarray(_falling(rng, 2000, 2.5, 0.3, 200, 0) + 0.05 * np.abs(rng.standard_t(1.5, size=2000)))


def tiny_batch(seed: int) -> FloatArray:
    """Scatter like one sample a batch."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.exponential(size=2000) * _falling(rng, 2000, 2.5, 0.3, 300, 0))


def huge_batch(seed: int) -> FloatArray:
    """Have hardly any noise."""
    return _falling(np.random.default_rng(seed), 2000, 2.5, 0.3, 300, 1e-4)


def constant(seed: int) -> FloatArray:
    """Never move."""
    return np.full(500, 0.5 + seed % 7)


RESTLESS: dict[str, Callable[[int], FloatArray]] = {
    maker.__name__: maker
    for maker in (
        curriculum, warm_restarts, imbalance, gan, policy_gradient, crossing_zero, from_a_thousand, near_zero,
        label_smoothing, warm_up_bump, saw_tooth, epoch_boundaries, heavy_tails, tiny_batch, huge_batch,
        constant,
    )
}  # fmt: skip
