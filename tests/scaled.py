"""Made runs in half precision: a scale that is not carried, activations that overflow, and their twins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traces import batch_of, learning
from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch

ROWS = 200
SCALE = 32768.0


def _run(loss: FloatArray, norm: FloatArray, scale: float = SCALE, skips: tuple[int, ...] = ()) -> Batch:
    skipped = np.isin(np.arange(len(loss)), skips)
    return batch_of(
        {"loss": loss, "grad_norm": np.where(skipped, np.inf, norm), "loss_scale": np.full(len(loss), scale),
         "skipped": 1.0 * skipped}
    )  # fmt: skip


def _norms(size: float, seed: int, rows: int = ROWS) -> FloatArray:
    return np.asarray(size * np.exp(0.3 * np.random.default_rng(seed).normal(size=rows)))


def _still(seed: int, rows: int = ROWS) -> FloatArray:
    return np.asarray(2.4 + 0.5 * np.random.default_rng(seed + 100).normal(size=rows))


def not_applied(seed: int = 0) -> Batch:
    """Have gradients smaller by the factor of the scale, and a loss that does not move."""
    return _run(_still(seed), _norms(4.0 / SCALE, seed))


def unscaled_twice(seed: int = 0) -> Batch:
    """Do the same, but overflow at the first step: the gradients did carry the scale."""
    return _run(_still(seed), _norms(4.0 / SCALE, seed), skips=(0, 1))


def forgets(seed: int = 0) -> Batch:
    """Learn until step 120, then go back to where it began while the gradient shrinks to a third."""
    rng = np.random.default_rng(seed)
    loss = learning(ROWS, seed=seed)
    back = loss[:5].mean() * (1 - np.exp(-np.arange(80) / 15)) + loss[119]
    loss[120:] = np.minimum(back, loss[0]) * (1 + 0.03 * rng.normal(size=80))
    norm = _norms(0.5, seed)
    norm[120:] *= 0.25
    return _run(loss, norm)


def scaled_well(seed: int = 0) -> Batch:
    """Learn, with gradients of an ordinary size."""
    return _run(learning(ROWS, seed=seed), _norms(1.0, seed))


def warming_up(seed: int = 0) -> Batch:
    """Not move at first, with gradients of an ordinary size."""
    return _run(_still(seed), _norms(1.0, seed))


def tiny_but_learning(seed: int = 0) -> Batch:
    """Have tiny gradients and learn all the same, as Adam does."""
    return _run(learning(ROWS, seed=seed), _norms(1e-4, seed))


def low_scale(seed: int = 0) -> Batch:
    """Have tiny gradients and a scale too low to explain them."""
    return _run(_still(seed), _norms(1e-3, seed), scale=32.0)


def small_gradients(seed: int = 0) -> Batch:
    """Be stuck, with gradients that are small but no wonder."""
    return _run(_still(seed), _norms(0.01, seed))


def harder_data(seed: int = 0) -> Batch:
    """Go back to where it began with gradients that grow: the data changed, nothing overflowed."""
    batch = forgets(seed)
    norm = batch.columns["grad_norm"].values.copy()
    norm[120:] *= 20
    return _run(batch.columns["loss"].values, norm)


HEALTHY_SCALES: dict[str, Callable[[int], Batch]] = {
    item.__name__: item for item in (scaled_well, warming_up, tiny_but_learning, low_scale, small_gradients)
}
